#!/bin/bash
echo 'Monday: rain.' >monday.txt
echo 'Tuesday: sun.' >tuesday.txt
