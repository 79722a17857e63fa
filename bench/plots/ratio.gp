# SPDX-License-Identifier: Apache-2.0
# Conventional time over replay time per kept token (lines), and what the bandwidths measured beside allow
# (dashes), over the batch: gnuplot -c plots/ratio.gp FILE OUT.svg [T]
file = ARG1
out = ARG2
tokens = ARGC > 2 ? ARG3 : "1"
script = system("dirname ".ARG0)."/../report.py"
ratio = sprintf("< python3 %s columns %s ratio operation=decode tokens=%s warm=false", script, file, tokens)
ceiling = sprintf("< python3 %s columns %s ratio_floors operation=decode tokens=%s warm=false", script, \
                  file, tokens)
set terminal svg size 900,560 dynamic background "white"
set output out
set title sprintf("replay against conventional, T = %s, states out of cache", tokens)
set xlabel "sequences of a step"
set ylabel "times faster"
set logscale x 2
set yrange [0:*]
set key outside right
stats ratio using 1 nooutput
plot for [i = 0:STATS_blocks - 1] ratio index i using 1:2 with linespoints linetype i + 1 title columnheader(1), \
     for [i = 0:STATS_blocks - 1] ceiling index i using 1:2 with lines linetype i + 1 dashtype 2 notitle, \
     1 with lines linecolor "black" notitle
