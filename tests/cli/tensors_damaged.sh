# SPDX-License-Identifier: Apache-2.0
# Weight files that are cut, or whose headers lie.
. "$CASES/edit_model"
try() {
    replayssm run ./m -p x -n 1
    echo "exit $?" >&2
}
copy_model tiny-gdn
own $second >name
cp "$(cat name)" whole
for bytes in 0 4 8 5000 100000 9489975; do
    echo "---- $bytes bytes" >&2
    head -c $bytes whole >"$(cat name)"
    try
done
echo "---- a byte too many" >&2
{ cat whole; echo; } >"$(cat name)"
try
echo "---- a header longer than the file" >&2
{ printf '\377\377\377\177\0\0\0\0'; tail -c +9 whole; } >"$(cat name)"
try
cp whole "$(cat name)"
lie() {
    echo "---- $1" >&2
    cp whole "$(cat name)"
    header $second "$1"
    try
}
lie '1s/"shape":\[128,256\],"data_offsets":\[0,65536\]/"shape":[128,256],"data_offsets":[0,95536]/'
lie '1s/"shape":\[128,256\],"data_offsets":\[0,65536\]/"shape":[128,255],"data_offsets":[0,65536]/'
lie '1s/"data_offsets":\[65536,66048\]/"data_offsets":[65535,66047]/'
lie '1s/"dtype":"BF16"/"dtype":"BF61"/'
lie '1s/{"__metadata__"/["__metadata__"/'
