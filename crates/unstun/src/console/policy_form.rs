//! The form of a policy: its fields, their values for a policy, and the policy of a form that was sent.

use api::error::{Error, Result};
use api::units::{parse_duration_s, short_duration};
use api::{Policy, PolicyBackup, Removes, Retention, TEMPLATE_DEFAULT};
use maud::{Markup, html};

use super::page::{choice, form_key, quiesce_choice};
use super::sent::{Sent, invalid};
use crate::access::sessions::Session;

/// Fields of the retention, with their titles.
const RULES: [(&str, &str); 6] = [
    ("last", "Last ones"),
    ("hourly", "Hours"),
    ("daily", "Days"),
    ("weekly", "Weeks"),
    ("monthly", "Months"),
    ("yearly", "Years"),
];

/// Times and windows have spaces and commas in them.
const BETWEEN: [char; 1] = [';'];

/// Returns what the form of a new policy has at first.
pub(super) fn fields_of_new() -> Sent {
    let fields = [
        ("is_new", "yes"),
        ("schedule", "Mon..Fri 22:00"),
        ("daily", "7"),
        ("vms", "*"),
        ("template", TEMPLATE_DEFAULT),
    ];
    Sent::of(&fields)
}

/// Returns what the form has for a policy.
pub(super) fn fields_of(policy: &Policy) -> Sent {
    let schedule: Vec<_> = policy.schedule.iter().map(|calendar| calendar.as_str()).collect();
    let vms: Vec<_> = policy.vms.iter().map(ToString::to_string).collect();
    let tags: Vec<_> = policy.tags.iter().map(ToString::to_string).collect();
    let windows: Vec<_> = policy.commit_window.iter().map(ToString::to_string).collect();
    let word = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    let number = |number: u32| if number == 0 { String::new() } else { number.to_string() };
    let backup = policy.backup.as_ref();
    let mut fields = vec![
        ("name", policy.name.to_string()),
        ("schedule", schedule.join("; ")),
        ("all", word(policy.keep.all)),
        ("min_age", short_duration(policy.keep.min_age_s)),
        ("vms", vms.join(" ")),
        ("tags", tags.join(" ")),
        ("template", policy.template.clone()),
        ("catch_up", word(policy.catch_up)),
        ("commit_window", windows.join("; ")),
        ("removes", policy.removes.as_str().to_owned()),
        ("quiesce", policy.quiesce.as_str().to_owned()),
        ("repository", backup.map_or(String::new(), |to| to.repository.to_string())),
        ("backup_keep", backup.map_or(String::new(), |to| to.keep.to_string())),
        ("enabled", word(policy.enabled)),
    ];
    fields.extend(policy.keep.rules().map(|(name, count)| (name, number(count))));
    Sent::of(&fields)
}

pub(super) fn is_new(sent: &Sent) -> bool {
    sent.is_ticked("is_new")
}

/// Returns the form, which leads to the preview of the policy that it describes.
pub(super) fn form(sent: &Sent, session: &Session) -> Markup {
    html! {
        form method="post" action="/policies/preview" {
            (form_key(session))
            fieldset {
                legend { "Takes" }
                div.row {
                    @if is_new(sent) {
                        input type="hidden" name="is_new" value="yes";
                        (text(sent, "Name", "name", 40, true))
                    } @else { input type="hidden" name="name" value=(sent.text("name")); }
                    (text(sent, "Times, as systemd writes them, with ; between them", "schedule", 8000, true))
                    (text(sent, "Names of the snapshots, with {time} in them", "template", 200, true))
                    (yes_no(sent, "Catch up the last time that was missed", "catch_up"))
                    (quiesce_choice(sent.quiesce().unwrap_or_default()))
                    (yes_no(sent, "Enabled", "enabled"))
                }
            }
            fieldset {
                legend { "Keeps" }
                p.quiet { "The last ones, and the last one of each of so many hours, days, weeks, months and years. An empty field is no rule." }
                div.row {
                    @for (name, title) in RULES {
                        label { (title) input name=(name) value=(sent.text(name)) maxlength="5" size="5" inputmode="numeric"; }
                    }
                    (choice("Every snapshot", "all", &[("no", "no"), ("yes", "yes, whatever the rules")], sent.text("all")))
                    (text(sent, "None younger than this is removed, such as 12h", "min_age", 12, false))
                }
                div.row {
                    (choice("Removes", "removes", &[("own", "its own snapshots"), ("all", "all snapshots of its VMs, those of people too")], sent.text("removes")))
                    (text(sent, "Windows for the commits of redo VMs, such as Mon..Fri 22:00-06:00; empty: any time", "commit_window", 6000, false))
                }
            }
            fieldset {
                legend { "Applies to" }
                div.row {
                    (text(sent, "VMs, with * and ?, and spaces between them", "vms", 4000, false))
                    (text(sent, "VMs with one of these tags", "tags", 3000, false))
                }
            }
            fieldset {
                legend { "Backs up" }
                div.row {
                    (text(sent, "Into the repository of this name; empty: nowhere", "repository", 64, false))
                    (text(sent, "Keeps there, such as 14 daily, 8 weekly; empty: all", "backup_keep", 200, false))
                }
            }
            div.row { button { "Preview..." } a href="/policies" { "Change nothing" } }
        }
    }
}

fn text(sent: &Sent, title: &str, name: &str, length: u32, is_required: bool) -> Markup {
    html! { label { (title) input name=(name) value=(sent.text(name)) maxlength=(length) required[is_required]; } }
}

fn yes_no(sent: &Sent, title: &str, name: &str) -> Markup {
    choice(title, name, &[("yes", "yes"), ("no", "no")], sent.text(name))
}

/// Returns the policy that a form describes. A form may leave out what has a default.
pub(super) fn policy(sent: &Sent) -> Result<Policy> {
    let is_so = |field: &str| sent.text(field) != "no";
    let template = match sent.text("template") {
        "" => TEMPLATE_DEFAULT,
        template => template,
    };
    let policy = Policy {
        name: sent.parsed("name")?,
        schedule: sent.split("schedule", &BETWEEN)?,
        keep: retention(sent)?,
        vms: sent.list("vms")?,
        tags: sent.list("tags")?,
        template: template.to_owned(),
        catch_up: is_so("catch_up"),
        commit_window: sent.split("commit_window", &BETWEEN)?,
        removes: if sent.text("removes").is_empty() { Removes::Own } else { sent.word("removes")? },
        quiesce: sent.quiesce()?,
        backup: backup(sent)?,
        enabled: is_so("enabled"),
    };
    policy.check().map_err(invalid)?;
    Ok(policy)
}

fn retention(sent: &Sent) -> Result<Retention> {
    let min_age_s = match sent.text("min_age") {
        "" => 0,
        text => parse_duration_s(text).map_err(|e| Error::invalid(format!("min_age: {e}")))?,
    };
    if sent.is_ticked("all") {
        return Ok(Retention { all: true, min_age_s, ..Retention::default() });
    }
    let count = |field: &str| if sent.text(field).is_empty() { Ok(0) } else { sent.number(field) };
    let (last, hourly, daily) = (count("last")?, count("hourly")?, count("daily")?);
    let (weekly, monthly, yearly) = (count("weekly")?, count("monthly")?, count("yearly")?);
    Ok(Retention { last, hourly, daily, weekly, monthly, yearly, min_age_s, all: false })
}

fn backup(sent: &Sent) -> Result<Option<PolicyBackup>> {
    let keep = sent.optional("backup_keep")?.unwrap_or_else(Retention::all);
    Ok(sent.optional("repository")?.map(|repository| PolicyBackup { repository, keep }))
}

/// Returns the policy that a preview has shown.
pub(super) fn shown_policy(sent: &Sent) -> Result<Policy> {
    let policy: Policy = serde_json::from_str(sent.text("policy")).map_err(invalid)?;
    policy.check().map_err(invalid)?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use api::Quiesce;

    use super::*;

    #[test]
    fn a_policy_comes_back_from_its_form_unchanged() {
        let rules = Retention { last: 3, daily: 7, yearly: 2, min_age_s: 36 * 3600, ..Retention::default() };
        let every = Retention::all();
        for keep in [rules, every] {
            let policy = Policy {
                name: "nightly".parse().unwrap(),
                schedule: vec!["Mon..Fri 22:00".parse().unwrap(), "*:0/15 UTC".parse().unwrap()],
                keep,
                vms: vec!["web*".parse().unwrap(), "db".parse().unwrap()],
                tags: vec!["prod".parse().unwrap()],
                template: "{vm}-{time}".to_owned(),
                catch_up: false,
                commit_window: vec!["Sat,Sun 22:00-06:00".parse().unwrap(), "01:00-02:00".parse().unwrap()],
                removes: Removes::All,
                quiesce: Quiesce::Try,
                backup: Some(PolicyBackup { repository: "offsite".parse().unwrap(), keep }),
                enabled: false,
            };
            assert_eq!(super::policy(&fields_of(&policy)).unwrap(), policy);
        }
    }

    #[test]
    fn a_form_without_choices_has_the_defaults_and_a_fault_says_what_was_expected() {
        let sent = |more: &[(&str, &str)]| {
            let few = [("name", "nightly"), ("schedule", "daily"), ("vms", "*")];
            policy(&Sent::of(&[few.as_slice(), more].concat()))
        };
        let policy = sent(&[("daily", "7")]).unwrap();
        assert!(policy.enabled && policy.catch_up && policy.commit_window.is_empty());
        assert_eq!((policy.template.as_str(), policy.removes), (TEMPLATE_DEFAULT, Removes::Own));
        for (fields, expected) in [
            (&[][..], "expected a rule"),
            (&[("daily", "many")], "daily: found \"many\", expected a number"),
            (&[("last", "3"), ("min_age", "young")], "min_age: \"young\""),
            (&[("last", "3"), ("template", "same")], "expected {time} in it"),
            (&[("last", "3"), ("commit_window", "at night")], "such as Mon..Fri 22:00-06:00"),
            (&[("last", "3"), ("tags", "a/b")], "tag"),
            (&[("last", "3"), ("repository", "r"), ("backup_keep", "some")], "expected rules such as"),
        ] {
            let error = sent(fields).unwrap_err().message;
            assert!(error.contains(expected), "{error}");
        }
        let error = shown_policy(&Sent::of(&[("policy", "{}")])).unwrap_err().message;
        assert!(error.contains("missing field"), "{error}");
    }
}
