# SPDX-License-Identifier: Apache-2.0
# Field log E06: the format of the states is what the command line says, or else the model's configuration, or else f32; and
# what came of it is shown.
. "$CASES/edit_model"
copy_model tiny-mamba2
config=$(own config.json)
cp "$config" original
state() { replayssm inspect m "$@" | grep -o 'checkpoints, [a-z0-9]*'; }
for dtype in float32 float16 bfloat16 auto; do
    sed "s/\"mamba_ssm_cache_dtype\": \"float32\"/\"mamba_ssm_cache_dtype\": \"$dtype\"/" original >"$config"
    echo "$dtype, nothing said: $(state); f32: $(state --checkpoint f32); f16: $(state --checkpoint f16)"
done
sed '/mamba_ssm_cache_dtype/d' original >"$config"
echo "silent, nothing said: $(state); f16: $(state --checkpoint f16)"
sed 's/"mamba_ssm_cache_dtype": "float32"/"mamba_ssm_cache_dtype": "int3"/' original >"$config"
replayssm inspect m
# and what does not go with it is refused
sed 's/"mamba_ssm_cache_dtype": "float32"/"mamba_ssm_cache_dtype": "float16"/' original >"$config"
replayssm run m -p x -n 20 --temp 0 --check
