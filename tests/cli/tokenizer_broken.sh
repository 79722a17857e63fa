# SPDX-License-Identifier: Apache-2.0
# tokenizer.json cut or emptied; without one, ids still run.
. "$CASES/edit_model"
copy_model tiny-gdn
own tokenizer.json >/dev/null
cp m/tokenizer.json whole
for bytes in 0 1000 100000; do
    head -c $bytes whole >m/tokenizer.json
    replayssm run ./m -p x -n 1
    echo "exit $?" >&2
done
rm m/tokenizer.json
replayssm run ./m -p x -n 1
echo "exit $?" >&2
echo '5 6 7' >ids
replayssm run ./m --ids ids -n 3 --temp 0 --json --method replay
