# SPDX-License-Identifier: Apache-2.0
# A calibration depends on the text alone, makes an nvfp4 copy better on another text, and belongs to its model.
ids() {
    i=0
    while [ $i -lt 513 ]; do
        echo $(((i * $1 + i * i * 7 + 11) % 4096))
        i=$((i + 1))
    done
}
ids 37 >one
ids 91 >other
for threads in 1 2; do
    replayssm eval calibrate --ids one --threads $threads -o calibration.$threads && echo written
done
cmp calibration.1 calibration.2 && echo equal
for which in calibration.1 ''; do
    replayssm eval kl --ids other --calibration "$which" --config copy=read:nvfp4 --csv out.csv >/dev/null
    sed -n 2p out.csv | cut -d , -f 4
done >kl
awk 'NR == 1 { with = $1 } NR == 2 { print (with > 0), (with < 0.7 * $1) }' kl
replayssm run -n 8 --temp 0 -p 'Call me' --read-copy nvfp4 --calibration calibration.1 --json | grep -c '"text"'
# what is refused
replayssm eval calibrate --ids one
replayssm eval calibrate -o x
replayssm eval calibrate --ids one --tokens 0 -o x
replayssm eval calibrate --ids one -o missing/x
replayssm run tiny-mamba2 -p x --read-copy nvfp4 --calibration calibration.1
replayssm run -p x --read-copy nvfp4 --calibration one
replayssm run -p x --read-copy nvfp4 --calibration missing
head -c 5000 calibration.1 >cut
replayssm run -p x --read-copy nvfp4 --calibration cut
ls x 2>/dev/null
