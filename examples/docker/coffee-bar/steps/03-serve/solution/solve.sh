#!/bin/bash
bash ask.sh bill
