//! The files of the channels: `NAME.toml` in a folder that only root writes. They may name a command that the daemon runs,
//! and secrets, which is why no request can change them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use api::{Alarm, AlarmRule, AlarmSeverity, VmGlob};
use hyper::Uri;
use serde::Deserialize;

use crate::etc;

/// Permission bits of group and others to read.
const MODE_READ: u32 = 0o044;

#[derive(Debug, Clone)]
pub(super) struct Channel {
    pub kind: Kind,
    min_severity: AlarmSeverity,
    /// Empty: all.
    rules: Vec<AlarmRule>,
    /// Empty: all, and alarms that are about no VM.
    vms: Vec<VmGlob>,
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Webhook(Webhook),
    Email(Email),
    /// The program and its arguments.
    Command(Vec<String>),
}

#[derive(Debug, Clone)]
pub(super) struct Webhook {
    pub url: Uri,
    /// Key of the signature; None: the requests have none.
    pub secret: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Email {
    pub server: String,
    pub port: Option<u16>,
    pub tls: Encryption,
    pub login: Option<(String, String)>,
    pub from: String,
    pub to: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encryption {
    #[default]
    Starttls,
    Tls,
    None,
}

/// A file. Which fields it has depends on `kind`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    kind: String,
    min_severity: Option<AlarmSeverity>,
    rules: Vec<AlarmRule>,
    vms: Vec<VmGlob>,
    url: Option<String>,
    secret: Option<String>,
    server: Option<String>,
    port: Option<u16>,
    tls: Encryption,
    user: Option<String>,
    password: Option<String>,
    from: Option<String>,
    to: Vec<String>,
    command: Vec<String>,
}

impl Kind {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Kind::Webhook(_) => "webhook",
            Kind::Email(_) => "email",
            Kind::Command(_) => "command",
        }
    }
}

impl Channel {
    pub(super) fn takes(&self, alarm: &Alarm) -> bool {
        let of_vm = |glob: &VmGlob| alarm.vm.as_ref().is_some_and(|vm| glob.matches(vm.as_str()));
        alarm.severity >= self.min_severity
            && (self.rules.is_empty() || self.rules.contains(&alarm.rule))
            && (self.vms.is_empty() || self.vms.iter().any(of_vm))
    }
}

/// Returns the channels by name, or why their files cannot be used.
pub(super) fn read_all(dir: &Path) -> BTreeMap<String, Result<Channel, String>> {
    let Ok(entries) = fs::read_dir(dir) else { return BTreeMap::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let channels = names.filter_map(|file| {
        let name = file.strip_suffix(".toml")?.to_owned();
        let path = dir.join(&file);
        Some((name, read(&path).map_err(|cause| format!("{}: {cause}", path.display()))))
    });
    channels.collect()
}

fn read(path: &Path) -> Result<Channel, String> {
    let (text, mode) = etc::read(path)?;
    let file = parse(&text)?;
    let has_secret = file.secret.is_some() || file.password.is_some();
    if has_secret && mode & MODE_READ != 0 {
        return Err(format!("mode {:o}: others may read its secret; `chmod 600` mends it", mode & 0o777));
    }
    channel(file)
}

/// Parses a file. A fault is shown to people who may not read the file, so that it must not repeat its lines.
fn parse(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = text.lines().nth(before.matches('\n').count()).unwrap_or_default();
        let field = line.split('=').next().unwrap_or_default().trim();
        let is_secret = ["secret", "password"].iter().any(|name| field.contains(name));
        let cause = if is_secret { "expected a text in quotes" } else { e.message() };
        let shown = if is_secret { format!("{field}: ") } else { String::new() };
        format!("line {}: {shown}{cause}", before.matches('\n').count() + 1)
    })
}

fn channel(file: File) -> Result<Channel, String> {
    let (min_severity, rules, vms) =
        (file.min_severity.unwrap_or(AlarmSeverity::Warning), file.rules.clone(), file.vms.clone());
    let kind = match file.kind.as_str() {
        "webhook" => Kind::Webhook(webhook(file)?),
        "email" => Kind::Email(email(file)?),
        "command" => match file.command.first().map(|program| program.starts_with('/')) {
            Some(true) => Kind::Command(file.command),
            _ => {
                return Err(
                    "command: expected an array with the absolute path of a program, and its arguments"
                        .to_owned(),
                );
            }
        },
        other => return Err(format!("kind: found {other:?}, expected webhook, email or command")),
    };
    Ok(Channel { kind, min_severity, rules, vms })
}

fn webhook(file: File) -> Result<Webhook, String> {
    let text = file.url.ok_or("url: expected the address of the webhook")?;
    // The address may be a secret too.
    let url: Uri = text.parse().map_err(|e| format!("url: {e}"))?;
    let is_sound = matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
    if !is_sound {
        return Err("url: expected http:// or https:// and a host".to_owned());
    }
    Ok(Webhook { url, secret: file.secret })
}

fn email(file: File) -> Result<Email, String> {
    if file.to.is_empty() {
        return Err("to: expected at least one address".to_owned());
    }
    let login = match (file.user, file.password) {
        (Some(user), Some(password)) => Some((user, password)),
        (None, None) => None,
        _ => return Err("user, password: expected both or none".to_owned()),
    };
    if login.is_some() && file.tls == Encryption::None {
        return Err("tls: found none, expected starttls or tls, because a password is sent".to_owned());
    }
    Ok(Email {
        server: file.server.ok_or("server: expected the name of the SMTP server")?,
        port: file.port,
        tls: file.tls,
        login,
        from: file.from.ok_or("from: expected the address of the sender")?,
        to: file.to,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn parse(text: &str) -> Result<Channel, String> {
        channel(super::parse(text)?)
    }

    #[test]
    fn a_file_says_what_is_delivered_where() {
        let found =
            parse("kind = 'webhook'\nurl = 'https://x/y'\nmin_severity = 'serious'\nvms = ['web*']").unwrap();
        let alarm = |vm: Option<&str>, severity| Alarm {
            id: "latency:web".into(),
            rule: AlarmRule::Latency,
            severity,
            object: "web".into(),
            vm: vm.map(|vm| vm.parse().unwrap()),
            message: String::new(),
            raised: jiff::Timestamp::UNIX_EPOCH,
            cleared: None,
            acknowledged: None,
        };
        assert!(found.takes(&alarm(Some("web1"), AlarmSeverity::Critical)));
        assert!(!found.takes(&alarm(Some("web1"), AlarmSeverity::Warning)));
        assert!(!found.takes(&alarm(Some("db"), AlarmSeverity::Critical)));
        assert!(!found.takes(&alarm(None, AlarmSeverity::Critical)));
    }

    #[test]
    fn what_is_wrong_is_said_with_field_found_and_expected() {
        for (text, expected) in [
            ("", "kind: found \"\", expected webhook, email or command"),
            ("kind = 'webhook'", "url: expected"),
            ("kind = 'webhook'\nurl = 'ftp://x/hunter2'", "expected http://"),
            ("kind = 'webhook'\nurl = 'http://x y/hunter2'", "url: invalid uri"),
            ("kind = 'command'\ncommand = ['mail']", "absolute path"),
            ("kind = 'email'\nserver = 'x'\nfrom = 'a@b'", "to: expected at least one"),
            ("kind = 'email'\nto = ['a@b']\nserver = 'x'\nfrom = 'a@b'\nuser = 'u'", "both or none"),
            (
                "kind = 'email'\nto = ['a@b']\nserver = 'x'\nfrom = 'a@b'\nuser = 'u'\npassword = 'p'\ntls = 'none'",
                "a password is sent",
            ),
            ("kind = 'webhook'\nurl = 'http://x'\nrule = 'x'", "line 3: unknown field `rule`"),
            ("kind = 'webhook'\nsecret = hunter2", "line 2: secret: expected a text in quotes"),
            ("kind = 'webhook'\nsecret = 'hunter2", "line 2: secret: expected a text in quotes"),
            ("kind = 'email'\n password = 12345", "line 2: password: expected a text in quotes"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2") && !error.contains("12345"), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_write_or_whose_secret_they_may_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.toml");
        fs::write(&path, "kind = 'webhook'\nurl = 'http://x'\nsecret = 's'\n").unwrap();
        for (mode, expected) in [(0o622, "others may write"), (0o644, "others may read its secret")] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let all = read_all(folder.path());
            assert!(all["hook"].as_ref().unwrap_err().contains(expected), "{all:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read_all(folder.path())["hook"].is_ok());
    }
}
