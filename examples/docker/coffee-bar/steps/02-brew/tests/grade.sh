# The machine's own book counts: a cup.txt written by hand was never brewed.
hot=0 strong=0
grep -q '^brew [0-9]* -> hot' machine.log && hot=1
grep -q '^brew [0-9]* -> hot and strong' machine.log && strong=1
reward "$hot" hot "$hot" strong "$strong"
