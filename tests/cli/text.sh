# SPDX-License-Identifier: Apache-2.0
# Text streams to stdout, figures follow on a line of their own.
replayssm run -p 'The captain looked at the sea, and' -n 20 --seed 3 --method replay
