#!/bin/bash
# The coffee machine: a small service on two named pipes, one order at a time.
answer() {
    case "$1 $2" in
        "ping ") echo ready ;;
        "brew "[0-9]*)
            if [ "$2" -ge 20 ]; then taste="hot and strong"
            elif [ "$2" -ge 16 ]; then taste=hot
            else taste="water, more or less"
            fi
            echo "$taste" | tee cup.txt ;;
        "bill ") if [ -f cup.txt ]; then echo "1 coffee, $(cat cup.txt): 2.80" | tee bill.txt; else echo "no cup"; fi ;;
        *) echo "brew <grams>, bill or ping?" ;;
    esac
}

while true; do
    read -r order what < orders
    said=$(answer "$order" "$what")
    [ "$order" = ping ] || echo "$order $what -> $said" >> machine.log
    echo "$said" > answers
done
