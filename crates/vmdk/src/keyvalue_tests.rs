use proptest::prelude::*;

use super::*;
use crate::text::{TEXT_BYTES_MAX, TEXT_LINES_MAX, count_lines};

fn parse(text: &str) -> KeyValues {
    KeyValues::parse("web.vmx", text.as_bytes()).unwrap()
}

#[test]
fn the_published_grammar() {
    let table = [
        ("a = \"b\"\n", Some(("a", "b"))),
        ("  a=b\r\n", Some(("a", "b"))),
        ("\u{feff}a = \"b\"", Some(("a", "b"))),
        ("a = \"b # c\" # comment", Some(("a", "b # c"))),
        ("a = # nothing", Some(("a", ""))),
        ("a = \"x|22y|7Cz|0A\"", Some(("a", "x\"y|z\n"))),
        ("a = \"50|\"", Some(("a", "50|"))),
        ("a = \"tab\tstays\"", Some(("a", "tab\tstays"))),
        ("# a = \"b\"", None),
        ("a = \"b", None),
        ("a = b c", None),
        ("a b = \"c\"", None),
        ("= \"c\"", None),
        ("nonsense", None),
        ("", None),
    ];
    for (line, expected) in table {
        let parsed = parse(line);
        let found = parsed.entries().next().map(|entry| entry.unwrap());
        assert_eq!(found, expected, "{line:?}");
        assert_eq!(parsed.to_bytes(), line.as_bytes());
    }
}

#[test]
fn a_change_touches_its_own_line_only() {
    let mut file = parse("# top\r\nScsi0:0.FileName=\"a.vmdk\"  # mine\r\njunk line\r\nend = \"1\"");
    file.set("scsi0:0.filename", "b.vmdk");
    file.set("end", "1");
    file.set("new", "say \"hi\"");
    let expected =
        "# top\r\nScsi0:0.FileName = \"b.vmdk\"\r\njunk line\r\nend = \"1\"\r\nnew = \"say |22hi|22\"\r\n";
    assert_eq!(String::from_utf8(file.to_bytes()).unwrap(), expected);
    file.remove("NEW");
    assert_eq!(file.get("new").unwrap(), None);
}

#[test]
fn contradicting_lines_are_damage() {
    let file = parse("a = \"1\"\nA = \"2\"\nb = \"3\"\nb = \"3\"\n");
    let error = file.get("a").unwrap_err().to_string();
    assert_eq!(error, "web.vmx: a is given twice, as \"1\" and as \"2\"; remove one of the lines");
    assert_eq!(file.get("b").unwrap(), Some("3"));
}

#[test]
fn other_encodings_are_kept_but_not_read() {
    let bytes = b".encoding = \"windows-1252\"\nname = \"caf\xe9\"\n";
    let mut file = KeyValues::parse("x.vmx", bytes).unwrap();
    assert_eq!(file.get("name").unwrap_err().kind, blk::ErrorKind::Unsupported);
    file.set("other", "1");
    assert!(file.to_bytes().starts_with(bytes));
}

#[test]
fn booleans() {
    let file = parse("a = \"True\"\nb = \"FALSE\"\nc = \"\"\nd = \"maybe\"\n");
    assert!(file.get_bool("a", false).unwrap());
    assert!(!file.get_bool("b", true).unwrap());
    assert!(file.get_bool("c", true).unwrap());
    assert!(!file.get_bool("absent", false).unwrap());
    assert!(file.get_bool("d", true).unwrap_err().to_string().contains("\"maybe\""));
}

/// Returns a file with the maximum numbers of lines and bytes.
fn largest() -> Vec<u8> {
    let slots = (0..600).map(|n| format!("scsi{}:{}.fileName = \"x\"\n", n / 64 % 4, n % 64));
    let mut text: String = slots.collect();
    let rest = TEXT_LINES_MAX - count_lines(text.as_bytes());
    text.extend((0..rest).map(|n| format!("key{n} = \"{n:038}\"\n")));
    text.into_bytes()
}

#[test]
fn a_text_that_is_too_long_is_refused_before_its_lines_are_stored() {
    let newlines = vec![b'\n'; TEXT_LINES_MAX + 1];
    let error = KeyValues::parse("a.vmx", &newlines).unwrap_err().to_string();
    assert_eq!(
        error,
        "a.vmx: the number of lines is 65537, expected at most 65536: this is not a text file of VMware's"
    );
    let long = vec![b'x'; TEXT_BYTES_MAX + 1];
    let error = KeyValues::parse("a.vmx", &long).unwrap_err().to_string();
    assert!(error.starts_with("a.vmx: the length in bytes is 4194305, expected at most 4194304"), "{error}");
    assert_eq!(KeyValues::parse("a.vmx", &newlines[1..]).unwrap().lines.len(), TEXT_LINES_MAX);
}

#[test]
fn a_lookup_takes_one_step_in_the_largest_file() {
    let text = largest();
    let mut file = KeyValues::parse("a.vmx", &text).unwrap();
    assert_eq!(steps::within(|| drop(KeyValues::parse("a.vmx", &text))), TEXT_LINES_MAX as u64);
    assert_eq!(steps::within(|| assert!(file.get("KEY60000").unwrap().is_some())), 1);
    assert_eq!(steps::within(|| assert!(file.get("none").unwrap().is_none())), 1);
    assert_eq!(steps::within(|| file.set("key60000", "other")), 1);
    assert_eq!(steps::within(|| file.set("new", "other")), 2);
    assert_eq!(steps::within(|| file.remove("none")), 1);
}

#[test]
fn the_index_follows_every_change() {
    let mut file = parse("a = \"1\"\nB = \"2\"\na = \"1\"\nx\n");
    let check = |file: &KeyValues| assert_eq!(file.index, Index::of(&file.lines));
    file.set("A", "3");
    check(&file);
    assert_eq!(file.to_bytes(), b"a = \"3\"\nB = \"2\"\nx\n");
    file.replace(|key| key == "B", [("c".into(), "4".into()), ("d".into(), "5".into())]);
    check(&file);
    file.set("e", "6");
    check(&file);
    file.remove("C");
    check(&file);
    assert!(file.has("D") && !file.has("c"));
    file.remove("e");
    file.set("d", "7");
    file.set("f", "8");
    check(&file);
    assert_eq!(file.to_bytes(), b"a = \"3\"\nd = \"7\"\nx\nf = \"8\"\n");
}

#[test]
fn of_lines_that_repeat_a_key_the_first_is_changed_and_the_others_are_removed() {
    let mut file = parse("a = \"1\"\nb = \"2\"\nA = \"3\"\na = \"1\"");
    let steps = steps::within(|| file.set("a", "4"));
    assert_eq!((file.to_bytes(), steps), (b"a = \"4\"\nb = \"2\"\n".to_vec(), 1));
    assert_eq!(file.get("A").unwrap(), Some("4"));
    let mut file = parse("x\na = \"1\"\na = \"1\"");
    file.remove("a");
    file.set("b", "2");
    assert_eq!(file.to_bytes(), b"x\nb = \"2\"\n");
}

proptest! {
    #[test]
    fn any_value_survives(value in ".*", key in "[a-z][a-z0-9:.]{0,20}") {
        let mut file = KeyValues::new("x");
        file.set(&key, &value);
        let again = KeyValues::parse("x", &file.to_bytes()).unwrap();
        prop_assert_eq!(again.get(&key).unwrap(), Some(value.as_str()));
    }

    #[test]
    fn any_bytes_are_kept(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let file = KeyValues::parse("x", &bytes).unwrap();
        prop_assert_eq!(file.to_bytes(), bytes);
        let _ = file.entries().count();
    }
}
