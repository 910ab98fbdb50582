//! Rust source as the rules see it: without comments, with or without the content of strings.

/// One file of the tree.
pub(crate) struct Source {
    /// From the root of the repository.
    pub path: String,
    pub text: String,
    /// Same lines and columns; comments and the content of literals are blank.
    pub code: String,
    /// Like `code`, with string literals kept.
    pub code_and_strings: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        Source {
            path: path.into(),
            text: text.into(),
            code: blank(text, true),
            code_and_strings: blank(text, false),
        }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// `engine` for `crates/engine/src/redo/map.rs`; empty outside the crates.
    pub(crate) fn crate_name(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("")
    }

    /// Code that ships, apart from modules of tests inside it.
    pub(crate) fn is_shipped(&self) -> bool {
        self.is_rust() && self.path.contains("/src/") && !self.path.ends_with("tests.rs")
    }

    /// `text` (one of this file's views) with every `#[cfg(test)] mod ... { }` blank.
    pub(crate) fn without_tests(&self, text: &str) -> String {
        let mut out = text.as_bytes().to_vec();
        let mut from = 0;
        while let Some(at) = self.code[from..].find("#[cfg(test)]").map(|n| from + n) {
            from = at + "#[cfg(test)]".len();
            let Some(open) = self.code[from..].find(['{', ';']).map(|n| from + n) else { break };
            let end = if self.code.as_bytes()[open] == b'{' { closing(&self.code, open) } else { open };
            out[at..=end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
            from = end;
        }
        String::from_utf8(out).expect("only ASCII was blanked")
    }

    /// (first line, number of lines, name) of every function with a body, roughly.
    pub(crate) fn functions(&self) -> Vec<(usize, usize, &str)> {
        let mut found = Vec::new();
        for (at, _) in self.code.match_indices("fn ") {
            let starts_word = at == 0 || !is_word(self.code.as_bytes()[at - 1]);
            let rest = &self.code[at + 3..];
            let name = &rest[..rest.bytes().take_while(|b| is_word(*b)).count()];
            let Some(open) = rest.find(['{', ';']).map(|n| at + 3 + n) else { continue };
            if !starts_word || name.is_empty() || self.code.as_bytes()[open] == b';' {
                continue;
            }
            let lines = self.code[at..closing(&self.code, open)].matches('\n').count() + 1;
            found.push((line_of(&self.code, at), lines, name));
        }
        found
    }

    /// Changes with the code, not with comments, layout or tests. FNV-1a, 64 bits.
    pub(crate) fn fingerprint(&self) -> u64 {
        let code = self.without_tests(&self.code_and_strings);
        let bytes = code.bytes().filter(|b| !b.is_ascii_whitespace());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

/// From 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where the brace at `open` closes; the end if it does not.
fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    code.len() - 1
}

fn blank(text: &str, strings_too: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let (end, keep) = match token(bytes, at) {
            Token::Comment(end) => (end, false),
            Token::Text(end) => (end, !strings_too),
            Token::Other => (at + 1, true),
        };
        for &byte in &bytes[at..end] {
            // Non-ASCII bytes only occur in what a rule of its own complains about.
            let kept = byte == b'\n' || (keep && byte.is_ascii());
            out.push(if kept { char::from(byte) } else { ' ' });
        }
        at = end;
    }
    out
}

/// Where it ends.
enum Token {
    Comment(usize),
    Text(usize),
    Other,
}

fn token(bytes: &[u8], at: usize) -> Token {
    let rest = &bytes[at..];
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => Token::Comment(at + find(rest, b"\n").unwrap_or(rest.len())),
        [b'/', b'*', ..] => Token::Comment(at + comment_length(rest)),
        [b'"', ..] => Token::Text(at + quoted_length(rest, b'"')),
        [b'r', b'"' | b'#', ..] if !inside_word || bytes[at - 1] == b'b' => {
            raw_length(rest).map_or(Token::Other, |n| Token::Text(at + n))
        }
        // A character, not a lifetime.
        [b'\'', b'\\', ..] | [b'\'', _, b'\'', ..] => Token::Text(at + quoted_length(rest, b'\'')),
        _ => Token::Other,
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 1,
            byte if byte == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    rest.len()
}

/// None for a raw identifier.
fn raw_length(rest: &[u8]) -> Option<usize> {
    let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end = [&b"\""[..], &vec![b'#'; hashes]].concat();
    let body = 2 + hashes;
    Some(find(&rest[body..], &end).map_or(rest.len(), |n| body + n + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_and_lifetimes_are_not() {
        let text =
            "let a = \"x // {\"; // y\nfn f<'a>(c: &'a char) { '{'; r#\"}\"#; /* } /* } */ */ b'\\'' }";
        let source = Source::new("crates/x/src/y.rs", text);
        let seen: Vec<&str> = source.code.split_whitespace().collect();
        assert_eq!(seen.join(" "), "let a = ; fn f<'a>(c: &'a char) { ; ; b }");
        assert_eq!(source.code.len(), text.len());
        assert!(source.code_and_strings.contains("x // {"));
        assert_eq!(source.crate_name(), "x");
    }

    #[test]
    fn functions_are_measured_and_tests_cut_out() {
        let text = "fn a() {\n  b();\n}\ntrait T { fn c(); }\n#[cfg(test)]\nmod tests {\n  fn d() {}\n}\nfn e() {}\n";
        let source = Source::new("crates/x/src/y.rs", text);
        assert_eq!(source.functions(), [(1, 3, "a"), (7, 1, "d"), (9, 1, "e")]);
        let shipped = source.without_tests(&source.code);
        assert!(!shipped.contains("fn d") && shipped.contains("fn e"));
        assert_eq!(shipped.len(), text.len());
    }

    #[test]
    fn a_fingerprint_follows_code_alone() {
        let print = |text| Source::new("a.rs", text).fingerprint();
        assert_eq!(print("const A: u32 = 1; // one"), print("const A:\n u32 = 1;"));
        assert_ne!(print("const A: u32 = 1;"), print("const A: u32 = 2;"));
    }
}
