# SPDX-License-Identifier: Apache-2.0
# Checkpoints that cannot be run: what they hold is shown, why not is said, and the exit code is 1.
. "$CASES/edit_model"
copy_model tiny-gdn
config=$(own config.json)
sed -i 's/qwen3_5_text/qwen9_text/' "$config"
replayssm inspect ./m
echo "exit $?"
cp "$CASES/../golden/families/kimi_linear/model.gguf" model.gguf
sed -i 's/kimi-linear/k1m1-linear/g' model.gguf
replayssm inspect ./model.gguf
echo "exit $?"
