"""What the live screen's keys do: the foot of the screen, and the page behind `?`."""

from __future__ import annotations

FOOT = "q quit  ? help  / filter  a all  s sort  enter open  y copy  p pause  w wrap"
PAGE = """\
 transom status --watch: it looks, and acts on nothing

 1-5 tab      nodes, incidents, checkpoints, log, plots
 j k arrows   move
 g G          first, last; home and end do the same
 ctrl-d -u    half a page down, up; pgdn, pgup a whole one;
              in what is open, where that is longer
 enter        open what is selected; esc closes it
 /            only lines with these words; esc shows all
 a            all nodes, or only those that differ
 s S          sort by another column; the other way round
 w            break long lines of what is open
 y            copy the command that tells more
 p r          pause; look now
 q ctrl-c     leave; the run goes on

 . ok  s slow  ! silent  ? suspect  p probing
 x isolated  - not heard of yet

 any key closes this page"""
