"""Find the rank that the others of a hung training wait for, from stacks and from torch's flight recorder.

- reader.py: a folder of dumps -> clues; the only module here that reads files
- dumps.py: text of py-spy or faulthandler -> threads; bytes of a flight recorder -> plain values
- stacks.py: a main thread -> its place in the code; all of them -> which ranks differ
- flight_recorder.py: plain values -> the collectives of one rank; who waits for whom
- findings.py, matching.py: all ranks' collectives -> who is missing, stuck, late, or calls something else
- syndromes.py: C4's classes, and one clue from all of this
"""
