# SPDX-License-Identifier: Apache-2.0
# A GGUF file instead of a folder: shown, run by ids, and refused where it cannot be.
golden=$CASES/../golden
cp "$golden/families/kimi_linear/model.gguf" model.gguf
replayssm inspect model.gguf
echo 1 2 3 >ids
replayssm run model.gguf --ids ids -n 8 --temp 0 --check
replayssm run model.gguf -p text -n 8
echo "exit $?" >&2
replayssm run "$golden/tokenizer.gguf" -p text
echo "exit $?" >&2
head -c 5000 model.gguf >short.gguf
replayssm run ./short.gguf --ids ids
echo "exit $?" >&2
