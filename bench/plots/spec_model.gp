# SPDX-License-Identifier: Apache-2.0
# Tokens per second of whole runs, plain and drafted, over the batch:
# gnuplot -c plots/spec_model.gp FILE OUT.svg [TEMPERATURE]
file = ARG1
out = ARG2
temperature = ARGC > 2 ? ARG3 : "0"
data = sprintf("< python3 %s/../report.py columns %s tokens_per_second operation=spec_model temperature=%s", \
               system("dirname ".ARG0), file, temperature)
set terminal svg size 900,560 dynamic background "white"
set output out
set title "whole runs with and without drafts"
set xlabel "sequences"
set ylabel "tokens per second"
set logscale x 2
set yrange [0:*]
set key outside right
stats data using 1 nooutput
plot for [i = 0:STATS_blocks - 1] data index i using 1:2 with linespoints title columnheader(1)
