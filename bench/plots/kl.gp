# SPDX-License-Identifier: Apache-2.0
# KL divergence over the length of the text, a line for each configuration of eval kl --csv, both axes logarithmic:
# gnuplot -c plots/kl.gp FILE OUT.svg [TITLE]
file = ARG1
out = ARG2
# blocks of "middle of the bucket, kl", each headed by its name; names hold no comma unless they are quoted
data = sprintf("< awk -F, 'NR > 1 { if ($1 != last) { printf \"%%s\\\"%%s\\\"\\n\", (NR > 2 ? \"\\n\\n\" : \"\"), $1; last = $1 } print $2 + $3 / 2, $4 }' '%s'", file)
set terminal svg size 900,560 dynamic background "white"
set output out
set title sprintf("%s: divergence from fp32 states", ARGC > 2 ? ARG3 : "")
set xlabel "position in the text, tokens"
set ylabel "KL divergence, nats"
set logscale xy
set format y "10^{%L}"
set key outside right
stats data using 1 nooutput
plot for [i = 0:STATS_blocks - 1] data index i using 1:2 with linespoints title columnheader(1)
