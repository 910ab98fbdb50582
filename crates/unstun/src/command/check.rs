//! `unstun check` and `scrub`: one line for each finding. This program reads files itself; the daemon that serves a
//! store checks the store.

use std::path::Path;

use api::client::Client;
use api::error::{Error, ErrorKind, Result};
use api::name::DatastoreName;
use api::output::Output;
use api::progress::watch;
use api::{Checked, Datastore, DatastoreCondition, Finding, Severity};

use crate::command::commit;
use crate::daemon;

/// Checks files. This function and the next two return the exit code.
pub(super) fn files(path: &Path, output: Output) -> Result<u8> {
    let path = daemon::absolute_store(path, "no such file or folder")?;
    match daemon::store_at(&path) {
        Some(store) => print(&daemon::check_store(&store)?, output),
        None => print(&daemon::check(&path)?, output),
    }
}

pub(super) async fn stores(client: &Client, output: Output) -> Result<u8> {
    let datastores = chosen(client).await?;
    let mut answers = Answers::of(datastores.len());
    for datastore in datastores {
        let checked = match datastore.condition {
            DatastoreCondition::Open => client.store_check(&datastore.name).await,
            _ => Err(unserved(&datastore)),
        };
        answers.add(&datastore, checked)?;
    }
    answers.print(client, output)
}

/// Follows a job for each store, and prints the findings when all jobs have ended.
pub(super) async fn scrub(client: &Client, output: Output) -> Result<u8> {
    let datastores = with_store(client).await?;
    let mut answers = Answers::of(datastores.len());
    for datastore in datastores {
        let checked = match datastore.condition {
            DatastoreCondition::Open => scrubbed(client, &datastore.name).await,
            _ => Err(unserved(&datastore)),
        };
        answers.add(&datastore, checked)?;
    }
    answers.print(client, output)
}

async fn scrubbed(client: &Client, datastore: &DatastoreName) -> Result<Checked> {
    commit::ended(watch(client, client.store_scrub(datastore).await?).await?)?;
    client.store_scrubbed(datastore).await
}

fn unserved(datastore: &Datastore) -> Error {
    let message = datastore.message.clone();
    Error::new(ErrorKind::Unavailable, message.unwrap_or_else(|| "see `unstun datastore list`".to_owned()))
}

/// Answers of several datastores. A datastore that cannot be checked is a warning; the others are still checked.
struct Answers {
    asked: usize,
    checked: Vec<Checked>,
    unchecked: bool,
}

impl Answers {
    fn of(asked: usize) -> Self {
        Answers { asked, checked: Vec::new(), unchecked: false }
    }

    /// Adds an answer. An error of the only datastore is returned instead.
    fn add(&mut self, datastore: &Datastore, answer: Result<Checked>) -> Result<()> {
        match answer {
            Ok(checked) => self.checked.push(checked),
            Err(e) if self.asked == 1 => return Err(e),
            Err(e) => {
                self.unchecked = true;
                self.checked.push(not_checked(datastore, e));
            }
        }
        Ok(())
    }

    /// Prints the findings and returns the exit code. Damage comes first; a datastore that was not checked is not sound
    /// either.
    fn print(self, client: &Client, output: Output) -> Result<u8> {
        let unchecked = self.unchecked;
        match print(&together(client, self.checked), output)? {
            0 if unchecked => Ok(ErrorKind::Unavailable.exit_code()),
            code => Ok(code),
        }
    }
}

fn not_checked(datastore: &Datastore, error: Error) -> Checked {
    let finding = Finding {
        severity: Severity::Warning,
        file: datastore.path.display().to_string(),
        field: format!("datastore {}", datastore.name),
        found: "not checked".to_owned(),
        expected: "a datastore that is served".to_owned(),
        remedy: error.message,
    };
    Checked { path: datastore.path.clone(), findings: vec![finding] }
}

/// Returns the datastore that the command names, or else all.
async fn chosen(client: &Client) -> Result<Vec<Datastore>> {
    let named = client.within().await?;
    let mut all = client.datastore_list().await?;
    all.retain(|one| named.as_ref().is_none_or(|named| one.name == *named));
    Ok(all)
}

/// Returns the datastore that the command names, or else all that have native disks or may have them. If none has, the
/// main one is returned, and its answer says so.
async fn with_store(client: &Client) -> Result<Vec<Datastore>> {
    let all = chosen(client).await?;
    let may_have = |one: &&Datastore| one.native_store || one.condition != DatastoreCondition::Open;
    let some: Vec<_> = all.iter().filter(may_have).cloned().collect();
    Ok(if some.is_empty() { all.into_iter().take(1).collect() } else { some })
}

/// Combines the answers. The answer of a single store is returned as it is.
fn together(client: &Client, mut all: Vec<Checked>) -> Checked {
    if all.len() == 1 {
        return all.remove(0);
    }
    let findings = all.into_iter().flat_map(|one| one.findings).collect();
    Checked { path: client.datastore().to_path_buf(), findings }
}

fn print(checked: &Checked, output: Output) -> Result<u8> {
    output.result(checked, describe)?;
    let damaged = checked.findings.iter().any(|finding| finding.severity == Severity::Damage);
    Ok(if damaged { ErrorKind::Damaged.exit_code() } else { 0 })
}

fn describe(checked: &Checked) -> String {
    let mut text: String = checked.findings.iter().map(|finding| line(finding) + "\n").collect();
    let count = |severity| checked.findings.iter().filter(|finding| finding.severity == severity).count();
    let (damage, warnings) = (count(Severity::Damage), count(Severity::Warning));
    text.push_str(&format!("{}: {damage} damaged, {}", checked.path.display(), counted(warnings, "warning")));
    match count(Severity::Note) {
        0 => text,
        notes => format!("{text}, {}", counted(notes, "note")),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn line(finding: &Finding) -> String {
    let Finding { severity, file, field, found, expected, remedy } = finding;
    format!("{}: {file}: {field} is {found}, expected {expected}; {remedy}", severity.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_all_five_parts() {
        let finding = Finding {
            severity: Severity::Damage,
            file: "web-000001.vmdk".to_owned(),
            field: "parentCID".to_owned(),
            found: "0000000a".to_owned(),
            expected: "0000000b".to_owned(),
            remedy: "restore the parent".to_owned(),
        };
        let checked = Checked { path: "/srv/web".into(), findings: vec![finding] };
        assert_eq!(
            describe(&checked),
            "damage: web-000001.vmdk: parentCID is 0000000a, expected 0000000b; restore the parent\n\
             /srv/web: 1 damaged, 0 warnings"
        );
    }
}
