//! `unstun token`, `unstun console` and `unstun audit`.

use api::client::Client;
use api::error::{Error, Result};
use api::name::VmName;
use api::output::{Output, escape_line, table};
use api::units::format_bytes;
use api::{AuditEntry, Role, Token, TokenCreate, VmGlob};

use crate::cli::{TokenCommand, TokenCreateArgs};

pub(super) async fn run(command: &TokenCommand, client: &Client, output: Output) -> Result<()> {
    match command {
        TokenCommand::Create(args) => create(args, client, output).await,
        TokenCommand::List => output.result(&client.token_list().await?, |tokens| list(tokens)),
        TokenCommand::Revoke { name } => output
            .result(&client.token_revoke(name).await?, |token| format!("token {} is revoked", token.name)),
    }
}

async fn create(args: &TokenCreateArgs, client: &Client, output: Output) -> Result<()> {
    let TokenCreateArgs { name, role, vm, expires, quota } = args;
    let (name, vms) = (name.clone(), vm.clone());
    let request = TokenCreate { name, role: *role, vms, valid_s: *expires, quota_bytes: *quota };
    let created = client.token_create(&request).await?;
    output.note(&format!(
        "token {}: {}. The secret is shown this once; a client sends it as `Authorization: Bearer SECRET`.",
        created.token.name,
        rights(&created.token)
    ));
    output.result(&created, |created| created.secret.clone())
}

/// Returns what a token may do, in words.
fn rights(token: &Token) -> String {
    let vms: Vec<_> = token.vms.iter().map(VmGlob::as_str).collect();
    let of = if vms.is_empty() { "all VMs".to_owned() } else { format!("VMs {}", vms.join(", ")) };
    let until = token.expires.map_or("for ever".to_owned(), |expires| format!("until {expires:.0}"));
    format!("role {} on {of}, valid {until}", token.role.as_str())
}

fn list(tokens: &[Token]) -> String {
    if tokens.is_empty() {
        return "no tokens".to_owned();
    }
    let mut table = table(&["token", "role", "VMs", "quota", "expires", "created", "by"]);
    for token in tokens {
        let vms: Vec<_> = token.vms.iter().map(VmGlob::as_str).collect();
        table.add_row([
            token.name.to_string(),
            token.role.as_str().to_owned(),
            if vms.is_empty() { "all".to_owned() } else { vms.join(" ") },
            token.quota_bytes.map_or("-".to_owned(), format_bytes),
            token.expires.map_or("never".to_owned(), |expires| format!("{expires:.0}")),
            format!("{:.0}", token.created),
            token.by.clone(),
        ]);
    }
    table.to_string()
}

pub(super) async fn console(vm: Option<&VmName>, client: &Client, output: Output) -> Result<()> {
    let mut link = client.console_link().await?;
    if let Some(vm) = vm {
        link.urls.iter_mut().for_each(|url| url.push_str(&format!("&vm={vm}")));
    }
    if link.urls.is_empty() {
        return Err(Error::refused(
            "the daemon serves no TCP address; start it with `unstun up --web 127.0.0.1:8484`, or log in with a token at the \
             address of its proxy (`unstun token create`)",
        ));
    }
    output.result(&link, |link| {
        let port = link.urls[0]
            .split('/')
            .nth(2)
            .and_then(|host| host.rsplit_once(':'))
            .map_or("", |(_, port)| port);
        format!(
            "{}\nvalid once, for {} s. From another machine, first: ssh -L {port}:127.0.0.1:{port} THIS-HOST",
            link.urls.join("\n"),
            link.valid_s
        )
    })
}

pub(super) async fn audit(last: usize, client: &Client, output: Output) -> Result<()> {
    output.result(&client.audit(last).await?, |entries| {
        let lines: Vec<_> = entries.iter().map(line).collect();
        if lines.is_empty() { "nothing was changed yet".to_owned() } else { lines.join("\n") }
    })
}

fn line(entry: &AuditEntry) -> String {
    let role = entry.role.map_or("no role", Role::as_str);
    let outcome = match &entry.error {
        None => "done".to_owned(),
        Some(error) => format!("{}: {error}", entry.status),
    };
    let line = format!(
        "{:.0}  {} ({role}) from {}: {} {}: {outcome}",
        entry.time, entry.who, entry.from, entry.operation, entry.path
    );
    escape_line(&line).into_owned()
}
