# SPDX-License-Identifier: Apache-2.0
# --batch: sessions with seeds seed, seed + 1, ...; each is what it is alone, and "ids" are the first one's.
ids() { # the first list of ids
    sed 's/"ids":\(\[[^]]*\]\).*/"\1/; s/.*"//'
}
replayssm run -p 'It was' -n 8 --seed 5 --batch 3 --json >all
wc -l <all
for seed in 5 6 7; do
    replayssm run -p 'It was' -n 8 --seed $seed --json | ids >alone
    grep -qF "$(cat alone)" all && echo "seed $seed is in the batch"
done
replayssm run -p 'It was' -n 8 --seed 5 --json | ids >first
ids <all | cmp - first && echo "ids are those of the first"
replayssm run -p 'It was' -n 3 --seed 5 --batch 2 --method replay
