#!/bin/bash
printf '%s\n' 'Dear aunt Mai, the socks are `warm` & "soft", $5 well spent.' >note.txt
