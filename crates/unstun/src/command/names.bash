
# Completes the names of VMs, snapshots, disks, policies and datastores, which the daemon has.
_unstun_names() {
    local cur="$2" at=$COMP_CWORD word="${COMP_WORDS[COMP_CWORD]}" fitting names=() others=()
    _unstun "$@"
    # Bash divides VM@NAME into three words, and replaces the last two.
    while ((at > 1)) && [[ $word == @* || ${COMP_WORDS[at - 1]} == @ ]]; do
        ((at--))
        word="${COMP_WORDS[at]}$word"
    done
    if [[ $word != -* ]]; then
        while IFS= read -r fitting; do
            # Names from other tools have any characters: the shell must not carry them out.
            printf -v fitting %q "${fitting#"${word%"$cur"}"}"
            names+=("$fitting")
        done < <("$1" complete -- "${COMP_WORDS[@]:1:at-1}" "$word" 2>/dev/null)
    fi
    # Placeholders such as <VM> are no words.
    for fitting in "${COMPREPLY[@]}"; do
        [[ $fitting == [\<\[]* ]] || others+=("$fitting")
    done
    COMPREPLY=("${names[@]}")
    ((${#names[@]})) || COMPREPLY=("${others[@]}")
}
complete -F _unstun_names -o bashdefault -o default unstun
