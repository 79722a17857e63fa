#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The study behind docs/quality.md: what narrow states do to the bundled models over a long text, and to recurrent layers
# alone in slow regimes. Hours. What is finished is not run again, and a model's figures are kept as they come:
#
#   FOLDER/MODEL.csv     KL divergence and errors by position, every 1,024 tokens
#   FOLDER/MODEL.json    the same once the text is through
#   FOLDER/drift.csv     errors of lone layers
#   FOLDER/*.svg         plots of these, where there is gnuplot
#
# usage: study.sh COMMAND TEXT [FOLDER [TOKENS [THREADS]]]
set -eu
command=$1
text=$2
folder=${3:-study}
tokens=${4:-131072}
threads=${5:-0}
plots=$(cd "$(dirname "$0")/../bench/plots" && pwd)
if [ ! -r "$text" ]; then
    echo "study: $text cannot be read" >&2
    exit 1
fi
mkdir -p "$folder"

plot() {
    if command -v gnuplot >/dev/null; then
        gnuplot -c "$plots/$1.gp" "$folder/$2.csv" "$folder/$2.raw" "$2"
        sed 's/\t/ /g; s/ *$//' "$folder/$2.raw" >"$folder/$2.svg"
        rm "$folder/$2.raw"
    fi
}

if [ ! -s "$folder/drift.json" ]; then
    "$command" eval drift --tokens 16384 --csv "$folder/drift.csv" >"$folder/drift.part"
    mv "$folder/drift.part" "$folder/drift.json"
fi
plot drift drift
for model in tiny-gdn tiny-mamba2; do
    if [ ! -s "$folder/$model.json" ]; then
        echo "study: $model, $tokens tokens; figures so far are in $folder/$model.csv" >&2
        "$command" eval kl "$model" --file "$text" --tokens "$tokens" --threads "$threads" --csv "$folder/$model.csv" \
            --config f16sr=checkpoint:f16,rounding:stochastic \
            --config nvfp4=read:nvfp4 \
            --config nvfp4-f16sr=checkpoint:f16,rounding:stochastic,read:nvfp4 \
            --config control=read:nvfp4,control:1 \
            --config shared=read:nvfp4,block:16,shared:1 \
            --config per-token=read:nvfp4,block:16,shared:1,method:conventional >"$folder/$model.part"
        mv "$folder/$model.part" "$folder/$model.json"
    fi
    plot kl "$model"
done
