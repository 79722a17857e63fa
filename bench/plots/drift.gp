# SPDX-License-Identifier: Apache-2.0
# Error of the outputs of lone layers over the tokens fed, a panel for each regime of eval drift --csv:
# gnuplot -c plots/drift.gp FILE OUT.svg
file = ARG1
out = ARG2
set terminal svg size 1100,1500 dynamic background "white"
set output out
set datafile separator ","
set logscale xy
set format y "10^{%L}"
set xlabel "tokens"
set ylabel "relative error of the outputs"
set key outside right
# regimes hold commas and are quoted, so fields are taken from the end
field = "awk -F, 'NR > 1 { name = $0; sub(/^\"[^\"]*\",/, \"\", name); sub(/,.*/, \"\", name); regime = $0; sub(/\",.*/, \"\", regime); sub(/^\"/, \"\", regime);"
regimes = system(sprintf("%s if (!(regime in seen)) { seen[regime]; gsub(/ /, \"_\", regime); print regime } }' '%s'", field, file))
set multiplot layout words(regimes),1
do for [r = 1:words(regimes)] {
    regime = word(regimes, r)
    data = sprintf("< %s gsub(/ /, \"_\", regime); if (regime == \"%s\") { if (name != last) { printf \"%%s\\\"%%s\\\"\\n\", (n++ ? \"\\n\\n\" : \"\"), name; last = name } print $(NF - 2) \",\" $NF } }' '%s'", field, regime, file)
    set title system(sprintf("echo '%s' | tr _ ' '", regime)) noenhanced
    stats data using 1 nooutput
    plot for [i = 0:STATS_blocks - 1] data index i using 1:2 with lines title columnheader(1)
}
unset multiplot
