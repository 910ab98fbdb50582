//! Requests for pages and forms that were sent: rights, answers, and operations as the API has them.

use std::rc::Rc;
use std::sync::Arc;

use api::error::{Error, ErrorKind, Result};
use api::name::VmName;
use axum::extract::{Form, FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Serialize;
use serde_json::json;

use super::browser::Browser;
use super::page::Page;
use super::sent::{Sent, invalid};
use crate::access::authorize::Access;
use crate::access::rights::{self, Reach, Right};
use crate::access::sessions::{Notice, Session};
use crate::daemon::{Daemon, Subject};

/// A request for a page.
pub(super) struct PageRequest {
    pub access: Arc<Access>,
    pub browser: Browser,
}

/// A form that was sent.
pub(super) struct FormRequest {
    pub page: PageRequest,
    pub sent: Sent,
}

/// A route of the API that does the same as a form. `name` has the method before the path, unless that is POST.
pub(super) struct Route<'a> {
    pub name: &'a str,
    /// The path of this request.
    pub path: String,
    pub vm: Option<VmName>,
}

impl<'a> Route<'a> {
    /// A route without a parameter.
    pub(super) fn plain(name: &'a str) -> Route<'a> {
        Route::to(name, "", "")
    }

    /// A route with one parameter.
    pub(super) fn to(name: &'a str, parameter: &str, value: &str) -> Route<'a> {
        let (_, path) = parts(name);
        let path = if parameter.is_empty() { path.to_owned() } else { path.replace(parameter, value) };
        Route { name, path, vm: None }
    }

    /// A route of a VM.
    pub(super) fn of_vm(name: &'a str, vm: &VmName) -> Route<'a> {
        Route { vm: Some(vm.clone()), ..Route::to(name, "{vm}", vm.as_str()) }
    }
}

fn parts(name: &str) -> (&str, &str) {
    name.split_once(' ').unwrap_or(("POST", name))
}

fn right(name: &str) -> &'static Right {
    let (method, route) = parts(name);
    rights::needed(&Method::from_bytes(method.as_bytes()).unwrap_or(Method::POST), route)
}

/// Returns whether the caller may use the route, for VMs that it reaches.
pub(super) fn may(session: &Session, route: &str) -> bool {
    let (right, caller) = (right(route), &session.caller);
    caller.role >= right.role && (right.reach != Reach::All || !caller.is_limited())
}

pub(super) fn parse_vm(text: &str) -> Result<VmName> {
    text.parse().map_err(invalid)
}

impl FromRequestParts<Arc<Access>> for PageRequest {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut Parts,
        access: &Arc<Access>,
    ) -> std::result::Result<Self, Response> {
        let browser = parts.extensions.get::<Browser>().cloned();
        let browser = browser.ok_or_else(|| Redirect::to("/login").into_response())?;
        Ok(PageRequest { access: access.clone(), browser })
    }
}

impl FromRequest<Arc<Access>> for FormRequest {
    type Rejection = Response;

    async fn from_request(request: Request, access: &Arc<Access>) -> std::result::Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let page = PageRequest::from_request_parts(&mut parts, access).await?;
        let form = Form::from_request(Request::from_parts(parts, body), access).await;
        let Form(sent) = form.map_err(IntoResponse::into_response)?;
        Ok(FormRequest { page, sent })
    }
}

impl PageRequest {
    pub(super) fn session(&self) -> &Session {
        &self.browser.session
    }

    /// Refuses a page whose content the caller may not have from the API's route.
    pub(super) fn permit(&self, route: &str, vm: Option<&VmName>) -> Result<()> {
        let (right, caller) = (right(route), &self.browser.session.caller);
        caller.require(right.operation, right.role)?;
        match (right.reach, vm) {
            (Reach::All, _) => caller.refuse_limited(right.operation),
            (_, Some(vm)) => caller.check(vm),
            (_, None) => Ok(()),
        }
    }

    /// Runs a question on the core's thread.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        subject: Subject,
        question: impl AsyncFnOnce(Rc<Daemon>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.access.core.ask(subject, question).await
    }

    /// Shows a page that follows changes, or why it cannot be shown.
    pub(super) async fn answer(&self, title: &str, body: impl Future<Output = Result<Markup>>) -> Response {
        match body.await {
            Ok(body) => self.show(title, &body),
            Err(error) => self.fault(title, &error),
        }
    }

    pub(super) fn show(&self, title: &str, body: &Markup) -> Response {
        let (access, browser) = (&self.access, &self.browser);
        // A refresh keeps the notice that the page has.
        let notice = if browser.is_refresh { None } else { access.sessions.take_notice(&browser.secret) };
        let page = Page { title, browser, is_live: true, notice: notice.as_ref() };
        page.with(body).into_response()
    }

    pub(super) fn fault(&self, title: &str, error: &Error) -> Response {
        self.still(title, Some(error), &html! { p { a href="/" { "To the overview" } } })
    }

    /// Shows a page that does not follow changes, with the fault of what it answers.
    pub(super) fn still(&self, title: &str, fault: Option<&Error>, body: &Markup) -> Response {
        let status = fault.map_or(200, |error| error.kind.http_status());
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let notice = fault.map(|error| Notice::Fault(error.message.clone()));
        let page = Page { title, browser: &self.browser, is_live: false, notice: notice.as_ref() };
        (status, page.with(body)).into_response()
    }
}

impl FormRequest {
    /// Answers with the page at an address, which says what was done, or why nothing was.
    pub(super) async fn answer(&self, page: &str, done: impl Future<Output = Result<String>>) -> Response {
        self.back_to(page, done.await)
    }

    pub(super) fn back_to(&self, page: &str, done: Result<String>) -> Response {
        let notice = done.map_or_else(|error| Notice::Fault(error.message), Notice::Done);
        self.page.access.sessions.tell(&self.page.browser.secret, notice);
        Redirect::to(page).into_response()
    }

    /// Answers with a page of its own, such as a question or a report; a fault is shown on the page at `back`.
    pub(super) async fn report(
        &self,
        back: &str,
        report: impl Future<Output = Result<(String, Markup)>>,
    ) -> Response {
        match report.await {
            Ok((title, body)) => self.page.still(&title, None, &body),
            Err(error) => self.back_to(back, Err(error)),
        }
    }

    /// Carries out what the form asks for, if it is of this session and the caller has the right of the route.
    pub(super) async fn act<T>(
        &self,
        Route { name, path, vm }: Route<'_>,
        body: &impl Serialize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let PageRequest { access, browser } = &self.page;
        if self.sent.text("form_key") != browser.session.form_key {
            let message = "the form is of another session; nothing was changed; load the page again";
            return Err(Error::new(ErrorKind::Forbidden, message));
        }
        let of = (right(name), path, vm);
        access.act(&browser.session.caller, &browser.origin, of, json!(body), work).await
    }

    /// Carries out an operation on a VM with the body of the route's request.
    pub(super) async fn on_vm<B: Serialize + Send + 'static, T: Send + 'static>(
        &self,
        route: &str,
        vm: &VmName,
        request: B,
        operation: impl AsyncFnOnce(Rc<Daemon>, VmName, B) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (body, name) = (json!(request), vm.clone());
        let work = async move |daemon| operation(daemon, name, request).await;
        self.act(Route::of_vm(route, vm), &body, self.page.ask(Subject::Vm(vm.clone()), work)).await
    }
}
