//! Tokens and the audit, for administrators: who may use the API, and who changed what.

use api::error::{Error, Result};
use api::name::TokenName;
use api::units::format_bytes;
use api::{AuditEntry, Role, Token, TokenCreate};
use axum::extract::Path;
use axum::response::Response;
use clap::ValueEnum;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use super::page::{age, form_key};
use super::request::{FormRequest, PageRequest, Route};
use super::sent::{Sent, invalid};
use crate::access::callers::token_name;
use crate::access::sessions::Session;
use crate::access::tokens;

/// Number of entries of the audit that the page shows, the newest first.
const ENTRIES_SHOWN: usize = 100;
const DAY_S: u64 = 24 * 3600;

pub(super) async fn show(page: PageRequest) -> Response {
    let body = async {
        let (all, entries) = known(&page).await?;
        Ok(lists(&all, &entries, page.session()))
    };
    page.answer("Access", body).await
}

fn lists(all: &[Token], entries: &[AuditEntry], session: &Session) -> Markup {
    html! {
        h2 { "Tokens" }
        p.quiet { "Programs and people on other machines use the API with a token. Only its hash is stored." }
        @if all.is_empty() { p { "There is no token." } }
        @else {
            div.scroll tabindex="0" role="region" aria-label="Tokens" {
                table {
                    thead { tr {
                        th scope="col" { "Token" } th scope="col" { "Role" } th scope="col" { "VMs" } th scope="col" { "Created" }
                        th scope="col" { "By" } th scope="col" { "Expires" } th.number scope="col" { "Quota" } th scope="col" { "Actions" }
                    } }
                    tbody { @for token in all { (row(token, session)) } }
                }
            }
        }
        (form(session))
        h2 { "Audit" }
        p.quiet { "The last " (ENTRIES_SHOWN) " changes. " code { "unstun audit --last N" } " has more." }
        (audit(entries))
    }
}

fn row(token: &Token, session: &Session) -> Markup {
    let vms: Vec<_> = token.vms.iter().map(|glob| glob.as_str()).collect();
    let is_over = token.expires.is_some_and(|expires| expires <= Timestamp::now());
    html! {
        tr {
            th scope="row" { (token.name) }
            td { (token.role.as_str()) }
            td { @if vms.is_empty() { "all" } @else { (vms.join(", ")) } }
            td { (age(token.created)) }
            td { (token.by) }
            td { @match token.expires {
                None => "never",
                Some(_) if is_over => { span.bad { "expired" } },
                Some(expires) => (format!("{expires:.0}")),
            } }
            td.number { (token.quota_bytes.map_or("-".to_owned(), format_bytes)) }
            td {
                form method="post" action=(format!("/access/{}/revoke", token.name)) {
                    (form_key(session))
                    button.loss aria-label=(format!("Revoke {}", token.name)) { "Revoke" }
                }
            }
        }
    }
}

fn form(session: &Session) -> Markup {
    html! {
        form.row method="post" action="/access/create" {
            (form_key(session))
            label { "Name" input name="name" required maxlength="40"; }
            label { "Role"
                select name="role" {
                    @for role in Role::value_variants() { option value=(role.as_str()) { (role.as_str()) } }
                }
            }
            label { "VMs, with * and ?; empty for all" input name="vms" maxlength="64"; }
            label { "Valid for so many days; empty for ever" input name="days" maxlength="5" inputmode="numeric"; }
            button { "Create a token" }
        }
    }
}

fn audit(entries: &[AuditEntry]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Audit" {
            table {
                thead { tr {
                    th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "From" } th scope="col" { "Operation" }
                    th scope="col" { "VM" } th.number scope="col" { "Status" } th scope="col" { "Error" }
                } }
                tbody {
                    @for entry in entries.iter().rev() {
                        tr {
                            td { time datetime=(entry.time) { (age(entry.time)) } }
                            td { (entry.who) }
                            td { (entry.from) }
                            td { (entry.operation) }
                            td { (entry.vm.as_deref().unwrap_or("")) }
                            td.number { (entry.status) }
                            td.text { (entry.error.as_deref().unwrap_or("")) }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the tokens and the end of the audit, for those who may see both.
async fn known(page: &PageRequest) -> Result<(Vec<Token>, Vec<AuditEntry>)> {
    page.permit("GET /tokens", None)?;
    let reader = page.access.clone();
    // It reads files.
    let entries = tokio::task::spawn_blocking(move || reader.audit.last(ENTRIES_SHOWN)).await;
    let entries = entries.map_err(|e| Error::failed(format!("reading the audit: {e}")))??;
    Ok((page.access.tokens.list()?, entries))
}

fn request(sent: &Sent) -> Result<TokenCreate> {
    let days: Option<u64> = if sent.text("days").is_empty() { None } else { Some(sent.number("days")?) };
    let request = TokenCreate {
        name: sent.parsed("name")?,
        role: sent.word("role")?,
        vms: sent.list("vms")?,
        valid_s: days.map(|days| days.saturating_mul(DAY_S)),
        quota_bytes: None,
    };
    tokens::check(&request).map_err(invalid)?;
    Ok(request)
}

/// Creates a token. The next page shows its secret, once.
pub(super) async fn create(form: FormRequest) -> Response {
    let done = async {
        let request = request(&form.sent)?;
        let (body, by) = (request.clone(), form.page.session().caller.who.clone());
        let access = &form.page.access;
        let work = access.tokens.create(&access.core, request, by);
        let created = form.act(Route::plain("/tokens"), &body, work).await?;
        Ok(format!("The secret of token {} is shown only here: {}", created.token.name, created.secret))
    };
    form.answer("/access", done).await
}

pub(super) async fn revoke(Path(name): Path<String>, form: FormRequest) -> Response {
    let done = async {
        let token: TokenName = name.parse().map_err(invalid)?;
        let access = &form.page.access;
        let work = access.tokens.revoke(&access.core, &token);
        form.act(Route::to("DELETE /tokens/{name}", "{name}", &name), &Value::Null, work).await?;
        access.sessions.end_all_of(&token_name(&token));
        Ok(format!("Token {token} is revoked."))
    };
    form.answer("/access", done).await
}
