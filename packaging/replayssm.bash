# SPDX-License-Identifier: Apache-2.0
# Completion for bash: commands and options as the command's own --help lists them, so that the two cannot disagree.
_replayssm() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=("${COMP_WORDS[0]}") words i
    for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
        case ${COMP_WORDS[i]} in
        run | inspect | eval | bench | nll | kl | drift | calibrate | kernel | auto | spec | serve | gemv | start | make-model) command+=("${COMP_WORDS[i]}") ;;
        *) break ;;
        esac
    done
    if [[ $current == -* ]]; then
        words=$("${command[@]}" --help 2>/dev/null | grep -oE -- '^ +(-[a-z], )?--[a-z][a-z0-9-]*' | grep -oE -- '--[a-z0-9-]+')
    else
        # what an option or a usage line offers as a|b|c, or the commands of a list
        words=$("${command[@]}" --help 2>/dev/null | grep -oE -- "^ +(-[a-z], )?$previous [a-z0-9|]+" | sed 's/.* //; s/|/ /g')
        [[ $words == *\ * ]] ||
            words=$("${command[@]}" --help 2>/dev/null | grep -q COMMAND && "${command[@]}" --help | sed -n 's/^  \([a-z-]*\)  .*/\1/p')
        [[ ${#command[@]} -gt 1 && ${command[1]} == eval && COMP_CWORD -eq 2 ]] && words="nll kl drift calibrate"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    [[ ${#COMPREPLY[@]} -gt 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
}
complete -o filenames -F _replayssm replayssm
