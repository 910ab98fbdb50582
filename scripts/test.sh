#!/usr/bin/env bash
# Runs the stages named, or all of them in order; prints each one's time, the tests that cannot run here with the reasons,
# and `N passed, N failed` as the last line.
# usage: test.sh [STAGE...]
set -uo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# Stage and the seconds after which it is stopped, so that a hang ends: several times what it takes cold on two cores.
# What they take is printed at the end.
STAGES=(setup:600 lint:900 build:1500 unit:400 crash:1500 clients:1200 guest:420)

logs=${CARGO_TARGET_DIR:-target}/test-logs
passed=0
failed=0
skipped=()

# The build for development builds in half the time of the release build; long campaigns are worth the other one.
profile=${UNSTUN_TEST_PROFILE:-dev}
# Nothing is built twice there.
[[ -n ${CI:-} ]] && export CARGO_INCREMENTAL=0

cargo_test() { cargo test --profile "$profile" --locked --workspace --no-fail-fast "$@"; }

# Test files (or folders) choose their stage by name: tests/crash*, clients*, guest*, and all others are unit tests.
test_targets() {
    local file name
    for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        [[ -e $file ]] || continue
        name=${file#crates/*/tests/}
        name=${name%/main.rs}
        name=${name%.rs}
        case "$1:$name" in
            crash:crash* | clients:clients* | guest:guest*) echo "--test=$name" ;;
            crash:* | clients:* | guest:* | unit:crash* | unit:clients* | unit:guest*) ;;
            unit:*) echo "--test=$name" ;;
        esac
    done | sort -u
}

fetch_crates() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo fetch --quiet --locked --target "$host"
}

stage_setup() {
    scripts/setup.sh test && fetch_crates
}

# With LINT_DOCS the documentation is built too: broken links and HTML, after another check of every crate.
stage_lint() {
    local bad=0 lints=2
    cargo fmt --all --check || bad=$((bad + 1))
    cargo clippy --profile "$profile" --locked --workspace --all-targets -- -D warnings || bad=$((bad + 1))
    if [[ -n ${LINT_DOCS:-} ]]; then
        lints=3
        RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps || bad=$((bad + 1))
    fi
    echo "test result: lints. $((lints - bad)) passed; $bad failed"
    return $bad
}

stage_build() {
    cargo_test --no-run
}

# shellcheck disable=SC2046 # target names have no spaces
stage_unit() {
    local bad=0
    cargo_test --lib --bins $(test_targets unit) || bad=1
    cargo_test --doc || bad=1
    return $bad
}

# Without a target cargo would run every test there is.
# shellcheck disable=SC2046
only() {
    [[ -n $(test_targets "$1") ]] || { echo "no test file belongs to stage $1"; return 1; }
    cargo_test $(test_targets "$1") -- "${@:2}"
}

stage_crash() { only crash; }

# Those that wait for leases and watchdogs most of their time, one after the other beside all others.
WAITING=(of_two_daemons_on_one_device a_core_that_panics_or_hangs)

# One client at a time: two loads on two cores would starve each other into time-outs.
stage_clients() {
    local bad=0
    cargo_test --test=clients -- --test-threads=1 "${WAITING[@]}" >"$logs/clients-waiting.log" 2>&1 &
    only clients --test-threads=1 "${WAITING[@]/#/--skip=}" || bad=1
    wait $! || bad=1
    cat "$logs/clients-waiting.log"
    return $bad
}

stage_guest() { only guest; }

if [[ ${1:-} == --stage ]]; then
    "stage_$2"
    exit
fi

# Tests that cannot run here, as `NAME: REASON`, each once. A test says `SKIPPED NAME: REASON`; where tests run one at a time the
# name is that of the main thread, and the line begins with `test NAME ... `.
skipped_in() {
    awk '/SKIPPED [^ ]+: / {
        name = $1 == "test" ? $2 : ($2 == "main:" ? "" : substr($2, 1, length($2) - 1))
        if (name != "" && !seen[name]++) { sub(/^.*SKIPPED [^ ]+: /, ""); print name ": " $0 }
    }' "$1"
}

limit_of() {
    local stage
    for stage in "${STAGES[@]}"; do
        [[ ${stage%%:*} == "$1" ]] && { echo "${stage##*:}"; return; }
    done
    echo "test.sh: no stage named $1; there are: ${STAGES[*]%%:*}" >&2
    return 2
}

# A stage that dies without naming a failed test (compiler error, signal, time limit) counts as one failure.
run_stage() {
    local name=$1 log=$logs/$1.log began=$SECONDS limit status p f missing
    limit=${UNSTUN_STAGE_LIMIT_S:-$(limit_of "$name")}
    printf '\n=== %s\n' "$name"
    {
        # timeout leaves the terminal's process group: Ctrl-C has to be passed on to it.
        timeout --kill-after=10 "$limit" scripts/test.sh --stage "$name" </dev/null 2>&1 &
        trap 'kill -TERM $!' INT TERM
        wait $! || { status=$?; wait $! 2>/dev/null; exit $status; }
    } | tee -i "$log"
    status=${PIPESTATUS[0]}
    read -r p f < <(awk '/^test result: / { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    mapfile -t missing < <(skipped_in "$log")
    # libtest counts them as passed.
    p=$((p - ${#missing[@]}))
    skipped+=("${missing[@]}")
    ((status == 124 || status == 137)) && echo "stage $name was stopped after $limit s"
    ((status != 0 && f == 0)) && f=1
    printf '=== %s: %d passed, %d failed, %d s\n' "$name" "$p" "$f" $((SECONDS - began))
    printf -v line '%-8s %5d passed %5d failed %5d s\n' "$name" "$p" "$f" $((SECONDS - began))
    summary+=$line
    passed=$((passed + p))
    failed=$((failed + f))
    return "$status"
}

wanted=("$@")
(($#)) || wanted=("${STAGES[@]%%:*}")
for name in "${wanted[@]}"; do limit_of "$name" >/dev/null || exit 2; done
[[ ${wanted[0]} == setup ]] || scripts/setup.sh test || exit 1

mkdir -p "$logs"
summary=""
trap 'exit 130' INT
trap 'exit 143' TERM
for name in "${wanted[@]}"; do
    run_stage "$name"
    status=$?
    # Nothing after these can say anything useful.
    [[ $status != 0 && ($name == setup || $name == build) ]] && break
done
printf -v total '%-8s %5d passed %5d failed %5d s\n' total "$passed" "$failed" "$SECONDS"
((${#skipped[@]})) && printf '\nskipped, because they cannot run here:\n' && printf '  %s\n' "${skipped[@]}"
printf '\n%s%s%d passed, %d failed\n' "$summary" "$total" "$passed" "$failed"
((failed == 0))
