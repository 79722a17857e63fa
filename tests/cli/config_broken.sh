# SPDX-License-Identifier: Apache-2.0
# config.json: broken, of an unknown type, with values that make no sense.
. "$CASES/edit_model"
copy_model tiny-gdn
config=$(own config.json)
cp "$config" good
try() {
    replayssm run ./m -p x -n 1
    echo "exit $?" >&2
}
change() {
    sed "$1" good >"$config"
    cmp -s "$config" good && echo "'$1' changes nothing"
    try
}
head -c 200 good >"$config"
try
: >"$config"
try
echo '[1, 2]' >"$config"
try
change 's/qwen3_5_text/qwen9_text/'
change '/"model_type"/d'
change 's/"hidden_size": 256/"hidden_size": -1/'
change 's/"hidden_size": 256/"hidden_size": "many"/'
change 's/"vocab_size": 4096/"vocab_size": 99999999999999/'
change 's/"num_hidden_layers": 8/"num_hidden_layers": 9/'
change 's/"linear_key_head_dim": 128/"linear_key_head_dim": 512/'
change 's/"linear_conv_kernel_dim": 4/"linear_conv_kernel_dim": 9/'
change 's/"rope_type": "default"/"rope_type": "spiral"/'
rm "$config"
try
