//! A browser that a test drives, over the DevTools protocol on a pipe (chromedevtools.github.io/devtools-protocol).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::space::{DEADLINE, until};

/// The browser reads commands from descriptor 3 and answers on descriptor 4. Tests run as root, for which it has no sandbox.
const START: &str = "exec chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe \
                     --user-data-dir=\"$1\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null";

pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    last: u64,
    session: Option<String>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    /// Starts a browser with an empty page. `profile` is a folder of its own.
    pub(crate) fn start(profile: &Path) -> Browser {
        let mut child = Command::new("bash")
            .args(["-c", START, "bash"])
            .arg(profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { child, commands, answers, last: 0, session: None };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attach = json!({"targetId": target, "flatten": true});
        let session =
            browser.call("Target.attachToTarget", &attach)["sessionId"].as_str().unwrap().to_owned();
        browser.session = Some(session);
        browser
    }

    /// Carries out a command, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let answer = self.answer(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Carries out a command, and returns the answer. Events in between are passed over.
    fn answer(&mut self, method: &str, parameters: &Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "{method}: the browser has ended");
            let answer: Value = serde_json::from_slice(&bytes).unwrap();
            if answer["id"] == self.last {
                return answer;
            }
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Returns the value of an expression; null while one page replaces another.
    pub(crate) fn look_at(&mut self, expression: &str) -> Value {
        let answer =
            self.answer("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}));
        answer["result"]["result"]["value"].clone()
    }

    /// Opens an address, and waits until the page with that path, or the one that it leads on to, is loaded.
    pub(crate) fn go(&mut self, url: &str, path: &str) {
        self.call("Page.navigate", &json!({"url": url}));
        self.at(path.split('?').next().unwrap_or(path));
    }

    /// Waits until the page with that path is loaded.
    pub(crate) fn at(&mut self, path: &str) {
        let look = format!("location.pathname === '{path}' && document.readyState === 'complete'");
        until(path, || (self.look_at(&look) == true).then_some(()));
    }

    /// Waits until the page has the text.
    pub(crate) fn sees(&mut self, text: &str) {
        self.sees_within(DEADLINE, text);
    }

    /// Waits until the page has the text, until `limit`, which is against hangs only. Fails with the page's own text.
    pub(crate) fn sees_within(&mut self, limit: Duration, text: &str) {
        let began = Instant::now();
        loop {
            let shown = self.text();
            if shown.contains(text) {
                return;
            }
            assert!(began.elapsed() < limit, "after {limit:?} the page does not show {text:?}:\n{shown}");
        }
    }

    pub(crate) fn text(&mut self) -> String {
        self.look_at("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Clicks what the selector finds.
    pub(crate) fn click(&mut self, selector: &str) {
        let click = format!("document.querySelector({}).click()", json!(selector));
        self.eval(&click);
    }

    pub(crate) fn fill(&mut self, selector: &str, value: &str) {
        self.eval(&format!("document.querySelector({}).value = {}", json!(selector), json!(value)));
    }

    /// Sets the size and the theme of the window.
    pub(crate) fn look(&mut self, width: u64, theme: &str) {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &metrics);
        let theme = json!({"features": [{"name": "prefers-color-scheme", "value": theme}]});
        self.call("Emulation.setEmulatedMedia", &theme);
    }

    /// Writes a picture of the window, base64 as the protocol has it, decoded by `base64`.
    pub(crate) fn picture(&mut self, file: &Path) {
        let data = self.call("Page.captureScreenshot", &json!({"format": "png"}))["data"].clone();
        let encoded = file.with_extension("base64");
        fs::write(&encoded, data.as_str().unwrap()).unwrap();
        let decode = "base64 -d \"$1\" > \"$2\" && rm \"$1\"";
        let decoded =
            Command::new("bash").args(["-c", decode, "bash"]).arg(&encoded).arg(file).status().unwrap();
        assert!(decoded.success());
    }
}
