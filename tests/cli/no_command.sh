# SPDX-License-Identifier: Apache-2.0
# Without a word the usage goes to stderr, and it counts as a mistake.
replayssm
