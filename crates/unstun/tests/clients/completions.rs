//! Names in the completions of bash, which runs the installed file as an interactive shell does.

use std::path::Path;
use std::process::Command;

use crate::daemon::Datastore;
use crate::datastores::folder as folder_of;

/// Completes a line as bash calls the function that is registered: the words as bash divides them, the last one under the
/// cursor. Arguments: the file, and the words.
const COMPLETE: &str = r#"
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
spec=$(complete -p unstun)
[[ $spec =~ -F\ ([a-z_]+) ]]
word=${COMP_WORDS[COMP_CWORD]}
[[ ${COMP_WORDS[COMP_CWORD - 1]} == @ ]] && word=@$word
"${BASH_REMATCH[1]}" unstun "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

fn complete(datastore: &Datastore, script: &Path, words: &[&str]) -> Vec<String> {
    let path = Path::new(env!("CARGO_BIN_EXE_unstun")).parent().unwrap().to_owned();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", COMPLETE, "bash"]).arg(script).arg("unstun").args(words);
    bash.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
    let output = bash.env("UNSTUN_DATASTORE", datastore.path()).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> = lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn bash_completes_the_names_of_vms_snapshots_and_others() {
    let datastore = Datastore::new();
    let daemon = datastore.start();
    for line in [
        "vm create web --disk 16M,16M",
        "vm create db --disk 16M",
        "policy create p --schedule daily --keep-last 1 --vm x",
    ] {
        datastore.json(line);
    }
    for name in ["before", "after", "beside"] {
        datastore.json(&format!("snapshot take web {name}"));
    }
    let folder = datastore.beside("completions");
    datastore.run(&format!("generate completions {}", folder.display()));
    let script = folder.join("unstun");
    let of = |words: &[&str]| complete(&datastore, &script, words);
    assert_eq!(of(&["vm", "show", ""]), ["db", "web"]);
    assert_eq!(of(&["vm", "show", "w"]), ["web"]);
    assert_eq!(of(&["attach", "web", "--resume", "be"]), ["before", "beside"]);
    datastore.json(&format!("datastore add fast={}", folder_of(&datastore, "second").display()));
    datastore.json_at("fast", "vm create apart --disk 16M");
    assert_eq!(of(&["--datastore", "fast", "vm", "show", ""]), ["apart"]);
    assert_eq!(of(&["--datastore", "=", "fast", "vm", "show", ""]), ["apart"]);
    datastore.json("vm remove apart --delete-disks --purge --yes");
    datastore.json("datastore remove fast --yes");
    assert_eq!(of(&["events", ""]), ["db", "web"], "no placeholder");
    assert_eq!(of(&["snapshot", "commit", "web", ""]), ["after", "before", "beside"]);
    assert_eq!(of(&["snapshot", "diff", "web", "after", "be"]), ["before", "beside"]);
    // As bash divides `web@be` and `web@`; it replaces what follows `web`.
    assert_eq!(of(&["snapshot", "revert", "web", "@", "be"]), ["@before", "@beside"]);
    assert_eq!(of(&["snapshot", "revert", "web", "@"]), ["@after", "@before", "@beside"]);
    assert_eq!(of(&["vm", "clone", "web", "@", "a"]), ["@after"]);
    assert_eq!(of(&["vm", "disk", "grow", "web/"]), ["web/disk0", "web/disk1"]);
    assert_eq!(of(&["policy", "show", ""]), ["p"]);
    assert_eq!(of(&["datastore", "remove", ""]), ["ds"]);
    assert_eq!(of(&["vm", "sh"]), ["show"], "the commands are completed as before");
    let is_option = |word: &String| word.starts_with('-') || word == "help";
    assert!(of(&["vm", "create", ""]).iter().all(is_option), "a name that is new");
    // A snapshot's name from another tool, which a shell would carry out.
    datastore.json("vm create redo --disk 16M --store redo");
    datastore.json("snapshot take redo safe");
    datastore.json("vm close redo");
    let list = datastore.path().join("redo/redo.vmsd");
    let named = std::fs::read_to_string(&list).unwrap().replace("\"safe\"", "\"x $(id); y\"");
    std::fs::write(&list, named).unwrap();
    datastore.json("vm open redo");
    assert_eq!(of(&["snapshot", "revert", "redo", "x"]), [r"x\ \$\(id\)\;\ y"]);
    daemon.stop();
    assert!(of(&["vm", "show", ""]).iter().all(is_option), "without a daemon there are none, and no error");
}
