#!/bin/sh
# Builds and lints the templates and checks their format. Every warning is an error.
# `check.sh FILE` also writes main.bicep, compiled, to FILE (relative to infra).
# Uses `bicep` if it is on the PATH, otherwise `az bicep`.
set -eu
cd "$(dirname "$0")"

if command -v bicep >/dev/null 2>&1; then
    run() { command bicep "$@"; }
elif command -v az >/dev/null 2>&1 && az bicep version >/dev/null 2>&1; then
    run() {
        verb=$1 file=$2
        shift 2
        az bicep "$verb" --file "$file" "$@"
    }
else
    printf '%s\n' 'The Bicep compiler was not found. Install it:' \
        '  with the Azure CLI: az bicep install' \
        '  alone:              https://learn.microsoft.com/azure/azure-resource-manager/bicep/install' >&2
    exit 1
fi

failed=0

complain() {
    printf '%s\n' "$@" >&2
    failed=1
}

for file in main.bicep azd.bicep; do
    # The compiler runs the linter too. Its exit code is 0 if there are only warnings.
    if ! report=$(run build "$file" --stdout 2>&1 >/dev/null); then
        complain "$report"
    elif report=$(printf '%s\n' "$report" | grep -E ' : (Warning|Error|Info) '); then
        complain "$report" # the Azure CLI may also print remarks of its own
    fi
done

for file in *.bicep modules/*.bicep; do
    run format "$file" --stdout | cmp -s - "$file" ||
        complain "$file is not formatted. Run: bicep format infra/$file"
done

[ "$failed" -ne 0 ] || [ -z "${1:-}" ] || run build main.bicep --stdout >"$1"
[ "$failed" -eq 0 ] && printf '%s\n' 'The templates compile without warnings and are formatted.'
exit "$failed"
