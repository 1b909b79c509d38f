# Only the artifacts of this step were brought here.
if [ ! -e /bar/machine.log ] && [ "$(cat /bar/bill.txt)" = "1 coffee, $(cat /bar/cup.txt): 2.80" ]
then reward 1
else reward 0
fi
