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
# the bad baselines are bad, and a control is as bad as what it is the control of
i=0
while [ $i -lt 257 ]; do
    echo $(((i * 91 + i * i * 7 + 11) % 4096))
    i=$((i + 1))
done >more
replayssm eval kl --ids more --config 'a "copy", plain=read:nvfp4,block:16' --config control=read:nvfp4,block:16,control:1 \
    --config shared=read:nvfp4,block:16,shared:1 --config token=read:nvfp4,block:16,shared:1,method:conventional \
    --config exact=method:conventional --config replay=window:16 --csv out.csv >/dev/null
sed -n 2p out.csv | cut -d , -f 1-4
awk -F , '{ kl[$(NF - 6)] = $(NF - 3) }
    NR == 2 { plain = $(NF - 3) }
    END { print (plain > 1e-6), (kl["control"] > plain / 4), (kl["control"] < plain * 4), (kl["shared"] > plain),
          (kl["token"] > 10 * plain), (kl["exact"] == 0), (kl["replay"] < 1e-11) }' out.csv
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
replayssm eval kl --ids ids --config a=seed:abc
replayssm eval kl --ids ids --config a=rounding:stochastic
replayssm eval kl --ids ids --config a=rank:4
replayssm eval kl --ids ids --config a=read:nvfp4,shared:1,control:1
replayssm eval kl --ids ids --config a=control:1
replayssm eval kl --ids ids --config a=read:f8,shared:1,rounding:stochastic
replayssm run -p x --rounding stochastic
replayssm run -p x --session ''
replayssm run -p x --session missing/s
replayssm run -p x --speculate model:
