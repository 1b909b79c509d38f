if [ "$(cat grounds.txt)" = 39 ]; then reward 1; else reward 0; fi
