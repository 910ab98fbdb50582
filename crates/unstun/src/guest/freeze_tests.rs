//! Tests of a freeze with an agent that answers, refuses, hangs and dies.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, atomic::AtomicBool};
use std::time::Duration;

use api::client::runtime;

use super::freeze::{Freeze, Frozen, begin};
use super::held::{HeldGuest, NotHeld, Waits, thaw_recorded};
use super::record::{Held, Record, all, forget};

#[path = "../../tests/clients/fake_agent.rs"]
mod fake_agent;

use fake_agent::Answer;

const FREEZE: &str = "guest-fsfreeze-freeze";
const THAW: &str = "guest-fsfreeze-thaw";
/// Long, for what comes, on a machine that does much else.
const LONG: Duration = Duration::from_secs(60);
/// Short, for what does not come.
const SHORT: Duration = Duration::from_millis(300);

const WAITS: Waits =
    Waits { reach: LONG, freeze: LONG, thaw: LONG, again: Duration::from_millis(10), tries: LONG };

fn of(folder: &Path, access: &str) -> Freeze {
    std::fs::create_dir_all(folder.join(".unstun")).unwrap();
    let record = Record { vm: "web".parse().unwrap(), held: Held::Frozen(access.parse().unwrap()) };
    let guest = HeldGuest { record, datastore: folder.to_owned(), guests_dir: folder.to_owned() };
    Freeze { guest, frozen_max: LONG, busy: Arc::new(AtomicBool::new(false)) }
}

/// Plays an agent, and returns how to freeze its guest, and the commands that it gets.
fn agent(folder: &Path, answer: impl FnMut(&str) -> Answer + Send + 'static) -> (Freeze, Receiver<String>) {
    let socket = folder.join("agent.sock");
    let commands = fake_agent::start(&socket, answer);
    (of(folder, &format!("unix:{}", socket.display())), commands)
}

fn begun(freeze: &Freeze, waits: Waits) -> Result<Frozen, NotHeld> {
    runtime().unwrap().block_on(begin(freeze.clone(), waits))
}

fn cause(freeze: &Freeze, waits: Waits) -> String {
    begun(freeze, waits).err().expect("an error").cause
}

#[test]
fn a_guest_is_frozen_until_it_is_thawed() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, commands) = agent(folder.path(), |_| Answer::Return(2));
    let frozen = begun(&freeze, WAITS).ok().unwrap();
    assert_eq!(frozen.file_systems, Some(2));
    assert_eq!(all(folder.path()), vec![freeze.guest.record.clone()], "a crash now leaves the record");
    assert!(cause(&freeze, WAITS).contains("still holds this guest"), "one at a time");
    assert_eq!(commands.recv().unwrap(), FREEZE);
    assert!(commands.recv_timeout(SHORT).is_err(), "no thaw yet");
    let thawed = runtime().unwrap().block_on(frozen.thaw());
    assert_eq!((thawed.held, commands.recv().unwrap()), (Ok(()), THAW.to_owned()));
    assert_eq!(all(folder.path()), []);
}

#[test]
fn a_taker_that_takes_too_long_or_vanishes_leaves_nothing_frozen() {
    let folder = tempfile::tempdir().unwrap();
    let (mut freeze, commands) = agent(folder.path(), |_| Answer::Return(1));
    freeze.frozen_max = SHORT;
    let frozen = begun(&freeze, WAITS).ok().unwrap();
    assert_eq!([commands.recv().unwrap(), commands.recv().unwrap()], [FREEZE, THAW], "without a word");
    let held = runtime().unwrap().block_on(frozen.thaw()).held;
    assert!(held.unwrap_err().contains("not taken within 300"));
    freeze.busy = Arc::default();
    freeze.frozen_max = LONG;
    drop(begun(&freeze, WAITS).ok().unwrap());
    assert_eq!([commands.recv().unwrap(), commands.recv().unwrap()], [FREEZE, THAW]);
}

#[test]
fn file_systems_that_another_program_thawed_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, _commands) = agent(folder.path(), |command| Answer::Return(u64::from(command != THAW)));
    let frozen = begun(&freeze, WAITS).ok().unwrap();
    let held = runtime().unwrap().block_on(frozen.thaw()).held;
    assert!(held.unwrap_err().contains("another program thawed"));
}

#[test]
fn a_guest_that_refuses_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, commands) = agent(folder.path(), |command| match command {
        FREEZE => Answer::Error("the command is disabled"),
        _ => Answer::Return(0),
    });
    assert!(cause(&freeze, WAITS).contains("the guest agent: the command is disabled"));
    assert_eq!(commands.recv().unwrap(), FREEZE);
    assert!(commands.recv_timeout(SHORT).is_err(), "what another program has frozen stays so");
    assert_eq!(all(folder.path()), []);
}

#[test]
fn an_agent_that_is_not_there_or_hangs_freezes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let absent = of(folder.path(), &format!("unix:{}/absent.sock", folder.path().display()));
    assert!(cause(&absent, WAITS).contains("absent.sock: "), "{}", cause(&absent, WAITS));
    let (freeze, commands) = agent(folder.path(), |_| Answer::Silence);
    let found = cause(&freeze, Waits { reach: SHORT, ..WAITS });
    assert!(found.contains("no answer in time; is it running in the guest"), "{found}");
    assert!(commands.try_recv().is_err(), "no command before it answers");
    assert_eq!(all(folder.path()), []);
}

#[test]
fn an_agent_that_hangs_while_it_freezes_thaws_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut thaws = 0;
    let (freeze, commands) = agent(folder.path(), move |command| match command {
        FREEZE => Answer::Silence,
        THAW => {
            thaws += 1;
            if thaws < 3 { Answer::HangUp } else { Answer::Return(1) }
        }
        _ => Answer::Return(0),
    });
    let error = begun(&freeze, Waits { freeze: SHORT, thaw: SHORT, ..WAITS }).err().unwrap();
    assert!(error.cause.contains("did not freeze: no answer in time"), "{}", error.cause);
    let later = error.later.unwrap().blocking_recv().unwrap();
    assert!(later.contains("are thawed"), "{later}");
    assert_eq!(commands.try_iter().collect::<Vec<_>>(), [FREEZE, THAW, THAW, THAW]);
    assert_eq!(all(folder.path()), []);
}

#[test]
fn an_agent_that_dies_while_the_guest_is_frozen_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, _commands) = agent(folder.path(), |command| match command {
        THAW => Answer::HangUp,
        _ => Answer::Return(1),
    });
    let frozen = begun(&freeze, Waits { tries: SHORT, ..WAITS }).ok().unwrap();
    let thawed = runtime().unwrap().block_on(frozen.thaw());
    assert!(thawed.held.unwrap_err().contains("did not thaw: the connection has ended"));
    let later = thawed.later.unwrap().blocking_recv().unwrap();
    assert!(later.contains("may be frozen") && later.contains("`unstun thaw`"), "{later}");
    assert_eq!(all(folder.path()), vec![freeze.guest.record.clone()], "the next start tries it again");
    assert!(thaw_recorded(&freeze.guest, Some(SHORT)).is_err());
    assert_eq!(all(folder.path()), [freeze.guest.record]);
}

#[test]
fn a_record_that_a_crash_left_is_thawed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, commands) = agent(folder.path(), |_| Answer::Return(1));
    freeze.guest.record.write(folder.path()).unwrap();
    thaw_recorded(&freeze.guest, Some(LONG)).unwrap();
    assert_eq!((commands.recv().unwrap().as_str(), all(folder.path())), (THAW, Vec::new()));
}

#[test]
fn a_record_of_a_guest_whose_qemu_has_ended_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gone.sock");
    // The file of a listener that has ended stays.
    drop(UnixListener::bind(&socket).unwrap());
    let freeze = of(folder.path(), &format!("unix:{}", socket.display()));
    freeze.guest.record.write(folder.path()).unwrap();
    thaw_recorded(&freeze.guest, Some(SHORT)).unwrap();
    assert_eq!(all(folder.path()), []);
}

#[test]
fn a_guest_that_an_earlier_take_left_frozen_is_thawed_first_or_stays_on_record() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, commands) = agent(folder.path(), |_| Answer::Return(1));
    freeze.guest.record.write(folder.path()).unwrap();
    let frozen = begun(&freeze, WAITS).ok().unwrap();
    assert_eq!([commands.recv().unwrap(), commands.recv().unwrap()], [THAW, FREEZE]);
    runtime().unwrap().block_on(frozen.thaw()).held.unwrap();
    assert_eq!(all(folder.path()), []);

    // An agent refuses to freeze what is frozen, as it refuses what it cannot freeze.
    let folder = tempfile::tempdir().unwrap();
    let (freeze, _commands) = agent(folder.path(), |command| match command {
        FREEZE | THAW => Answer::Error("the agent is in frozen state"),
        _ => Answer::Return(0),
    });
    freeze.guest.record.write(folder.path()).unwrap();
    let found = begun(&freeze, Waits { tries: SHORT, ..WAITS }).err().unwrap();
    assert!(found.cause.contains("an earlier snapshot may have left"), "{}", found.cause);
    let later = found.later.unwrap().blocking_recv().unwrap();
    assert!(later.contains("may be frozen"), "{later}");
    assert_eq!(all(folder.path()), [freeze.guest.record]);
}

#[test]
fn a_record_of_a_guest_that_is_not_frozen_stops_no_take() {
    // A command that thaws may fail where nothing is frozen.
    let folder = tempfile::tempdir().unwrap();
    let mut is_frozen = false;
    let (freeze, commands) = agent(folder.path(), move |command| {
        is_frozen |= command == FREEZE;
        if command == THAW && !is_frozen { Answer::Error("nothing is frozen") } else { Answer::Return(1) }
    });
    freeze.guest.record.write(folder.path()).unwrap();
    let frozen = begun(&freeze, WAITS).ok().unwrap();
    runtime().unwrap().block_on(frozen.thaw()).held.unwrap();
    assert_eq!(commands.try_iter().collect::<Vec<_>>(), [THAW, FREEZE, THAW]);
    assert_eq!(all(folder.path()), []);
}

#[test]
fn a_guest_that_is_reached_in_another_way_now_is_thawed_in_that_way() {
    let folder = tempfile::tempdir().unwrap();
    let (freeze, commands) = agent(folder.path(), |_| Answer::Return(1));
    let former = Held::Frozen(format!("unix:{}/former.sock", folder.path().display()).parse().unwrap());
    Record { held: former.clone(), ..freeze.guest.record.clone() }.write(folder.path()).unwrap();
    let frozen = begun(&freeze, Waits { reach: SHORT, ..WAITS }).ok().unwrap();
    runtime().unwrap().block_on(frozen.thaw()).held.unwrap();
    assert_eq!(commands.try_iter().collect::<Vec<_>>(), [THAW, FREEZE, THAW]);
    assert_eq!(all(folder.path()), []);
    // Neither way: a person has to say that it runs.
    let absent = of(folder.path(), &format!("unix:{}/absent.sock", folder.path().display()));
    Record { held: former, ..absent.guest.record.clone() }.write(folder.path()).unwrap();
    let found = cause(&absent, Waits { reach: SHORT, ..WAITS });
    assert!(found.contains("`unstun thaw --forget VM`"), "{found}");
    forget(folder.path(), &absent.guest.record.vm).unwrap();
    assert_eq!(all(folder.path()), []);
}

#[test]
fn a_command_that_fails_halfway_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("thawed");
    let text = format!(
        "freeze = ['/bin/sh', '-c', 'exit 9']\nthaw = ['/bin/sh', '-c', 'echo $UNSTUN_VM > {}']\n",
        path.display()
    );
    std::fs::write(folder.path().join("db.toml"), text).unwrap();
    let freeze = of(folder.path(), "command:db");
    let error = begun(&freeze, WAITS).err().unwrap();
    assert!(error.cause.contains("exit status: 9"), "{}", error.cause);
    assert!(error.later.unwrap().blocking_recv().unwrap().contains("are thawed"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "web\n");
}
