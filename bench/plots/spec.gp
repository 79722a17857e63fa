# SPDX-License-Identifier: Apache-2.0
# What a step that verifies T tokens costs (lines), and T conventional steps, the least that a state per draft costs
# (dashes), in units of one conventional step: gnuplot -c plots/spec.gp FILE OUT.svg [BATCH]
file = ARG1
out = ARG2
batch = ARGC > 2 ? ARG3 : "16"
script = system("dirname ".ARG0)."/../report.py"
replay = sprintf("< python3 %s columns --x tokens %s cost operation=spec batch=%s", script, file, batch)
snapshot = sprintf("< python3 %s columns --x tokens %s cost_snapshot operation=spec batch=%s", script, file, batch)
set terminal svg size 900,560 dynamic background "white"
set output out
set title sprintf("verifying T tokens, %s sequences, states out of cache", batch)
set xlabel "tokens of a step"
set ylabel "conventional steps"
set yrange [0:*]
set key outside right
stats replay using 1 nooutput
plot for [i = 0:STATS_blocks - 1] replay index i using 1:2 with linespoints linetype i + 1 title columnheader(1), \
     for [i = 0:STATS_blocks - 1] snapshot index i using 1:2 with lines linetype i + 1 dashtype 2 notitle
