#!/bin/bash
echo 'Monday: rain.' >monday.txt
