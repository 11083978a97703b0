"""Which rank the others of a hung training wait for: from their stacks and from torch's flight recorder.

- reading.py: a folder of dumps -> clues; the only module here that touches the disk
- dumps.py: py-spy's or faulthandler's text -> threads; unpickle.py: a flight recorder's bytes -> plain values
- places.py: a main thread -> where it stands; clusters.py: all of them -> who stands apart
- flight.py: plain values -> one rank's collectives; matching.py: all ranks' -> who is missing, stuck or late;
  mismatches.py: who calls something else; waits.py: who waits for whom
- syndromes.py: C4's four classes; one clue of all this
"""
