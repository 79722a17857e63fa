# SPDX-License-Identifier: Apache-2.0
# Formats of the state against fp32: halves are near, four bits farther, and the flushes are counted.
i=0
while [ $i -lt 65 ]; do
    echo $(((i * 37 + 11) % 4096))
    i=$((i + 1))
done >ids
replayssm eval kl --ids ids --config f16=checkpoint:f16,rounding:stochastic --config copy=read:nvfp4,window:8 \
    --csv out.csv | grep -E 'name|flushes|kernel'
cut -d , -f 1-3 out.csv
awk -F , 'NR == 2 { print ($4 < 1e-6) } NR == 3 { print ($4 > 1e-6 && $4 < 0.1) }' out.csv
replayssm run -n 8 --temp 0 -p 'Call me' --checkpoint f16 --rounding stochastic --read-copy int8 --json | grep -c '"text"'
# what is refused
replayssm eval kl --ids ids
replayssm eval kl --ids ids --config f16
replayssm eval kl --ids ids --config a=checkpoint:f12
replayssm eval kl --ids ids --config a=sort:f16
replayssm eval kl --ids ids --config a=read:nvfp4,rank:9
replayssm eval kl --ids ids --config a=method:conventional,read:nvfp4,block:24
replayssm run -p x --checkpoint f4
replayssm run -p x --checkpoint f16 --check
replayssm run -p x --read-copy f8 --method snapshot
replayssm eval kl --ids ids --config a=seed:abc
replayssm eval kl --ids ids --config a=rounding:stochastic
replayssm eval kl --ids ids --config a=rank:4
replayssm run -p x --rounding stochastic
replayssm run -p x --session ''
replayssm run -p x --session missing/s
replayssm run -p x --speculate model:
