# SPDX-License-Identifier: Apache-2.0
# Lone layers in slow regimes: fp32 is exact to rounding, an error that is fed back grows, one that is read alone does not.
replayssm eval drift --tokens 512 --csv out.csv --config 'f32=window:16' --config 'read=read:int8' --config 'bf16, 1=checkpoint:bf16,method:conventional' |
    grep -c '"tokens"'
head -1 out.csv
awk -F , '/no decay/ { x[n++] = $NF } END { print (n == 12), (x[3] < 1e-5), (x[7] < 1.5 * x[4]), (x[11] > 2 * x[8]) }' out.csv
grep -c '"bf16, 1",512,' out.csv
replayssm eval drift --tokens 64 --config a=control:1,read:int8
replayssm eval drift --tokens 64 --config a=read:nvfp4,calibrated:1
replayssm eval drift --tokens 63
replayssm eval drift tiny-gdn
replayssm eval drift --tokens 64 --csv missing/x
