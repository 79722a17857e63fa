# SPDX-License-Identifier: Apache-2.0
# Tensors that are missing, renamed, extra or of another shape, and an index that does not fit.
. "$CASES/edit_model"
try() {
    replayssm run ./m -p x -n 1
    echo "exit $?" >&2
    rm -rf m
}
echo "---- renamed" >&2
copy_model tiny-gdn
header $second '1s/layers.5.linear_attn.A_log/layers.5.linear_attn.B_log/'
header model.safetensors.index.json 's/layers.5.linear_attn.A_log/layers.5.linear_attn.B_log/'
try
echo "---- renamed in the file alone" >&2
copy_model tiny-gdn
header $second '1s/layers.5.linear_attn.A_log/layers.5.linear_attn.B_log/'
try
echo "---- missing: a layer more in config.json" >&2
copy_model tiny-gdn
tr -d '\n' <"$(own config.json)" >c
sed 's/"num_hidden_layers": 8/"num_hidden_layers": 9/; s/"full_attention" *\]/"full_attention","linear_attention"]/' c >m/config.json
try
echo "---- extra: a layer less in config.json" >&2
copy_model tiny-gdn
tr -d '\n' <"$(own config.json)" >c
sed 's/"num_hidden_layers": 8/"num_hidden_layers": 7/; s/, *"full_attention" *\]/]/' c >m/config.json
try
echo "---- another shape" >&2
copy_model tiny-gdn
header $second '1s/\("model.layers.4.mlp.down_proj.weight":{"dtype":"BF16","shape":\)\[256,640\]/\1[640,256]/'
try
echo "---- a shard that is not there" >&2
copy_model tiny-gdn
rm m/$second
try
echo "---- an index that is no JSON" >&2
copy_model tiny-gdn
own model.safetensors.index.json >/dev/null
echo '{' >m/model.safetensors.index.json
try
echo "---- an index that names a file elsewhere" >&2
copy_model tiny-gdn
sed 's,"model-00002,"../model-00002,' "$(own model.safetensors.index.json)" >i && mv i m/model.safetensors.index.json
try
