#!/bin/bash
bash ask.sh brew 20
