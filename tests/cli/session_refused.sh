# SPDX-License-Identifier: Apache-2.0
# Session files that are not ours, damaged, or of another model: refused with a reason, and left as they were.
replayssm run -p 'In the morning' -n 5 --seed 11 --session s --json >first
try() {
    cp "$1" before
    replayssm run ${2:-tiny-gdn} -n 2 --session "$1" --json
    echo "exit $?" >&2
    cmp "$1" before
}
cp s other
try other tiny-mamba2
head -c 3000 s >short
try short
: >empty
try empty
echo 'no session at all' >text
try text
for at in 0 100 40000 1000000; do
    cp s damaged
    printf '\125\252' | dd of=damaged bs=1 seek=$at conv=notrunc 2>/dev/null
    echo "---- bytes $at and $((at + 1))" >&2
    try damaged
done
