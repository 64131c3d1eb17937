/** The operations on each kind of resource. Generated from the code by `make pages`. */
export const OPERATIONS = {
  topic: ["read", "write", "create", "alter", "delete", "describe"],
  group: ["group", "describe"],
  app: ["transact", "describe"],
  stream: ["read", "write", "create", "delete", "describe"],
  cluster: ["cluster", "security", "describe"],
};
