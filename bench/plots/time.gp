# SPDX-License-Identifier: Apache-2.0
# Time per sequence over the batch, of every shape in FILE: gnuplot -c plots/time.gp FILE OUT.svg [OPERATION] [T]
file = ARG1
out = ARG2
operation = ARGC > 2 ? ARG3 : "decode"
tokens = ARGC > 3 ? ARG4 : "1"
data = sprintf("< python3 %s/../report.py columns %s us_sequence operation=%s tokens=%s warm=false", \
               system("dirname ".ARG0), file, operation, tokens)
set terminal svg size 900,560 dynamic background "white"
set output out
set title sprintf("%s, T = %s, states out of cache", operation, tokens)
set xlabel "sequences of a step"
set ylabel "microseconds per sequence"
set logscale x 2
set yrange [0:*]
set key outside right
stats data using 1 nooutput
plot for [i = 0:STATS_blocks - 1] data index i using 1:2 with linespoints title columnheader(1)
