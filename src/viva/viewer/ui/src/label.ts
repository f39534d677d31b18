// The name and status of an assertion.
import type { Assertion, Status } from "./data";

export function getLabel(check: Assertion): string {
  return check.label ?? check.type ?? "check";
}

export function getStatus(check: Assertion): Status {
  return check.passed === true ? "passed" : check.passed === false ? "failed" : "error";
}
