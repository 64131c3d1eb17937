/** Administration of any application's transactions (docs/transactions.md). `Log` has all of these methods. */

import { Grouping } from "./groups.js";
import * as messages from "../../wire/messages.js";

export class Settling extends Grouping {
  /** Resolve with every transaction that has not ended, ordered by application (transactional id). */
  async transactions() {
    return (await this.ask({ op: "list_transactions" }, messages.listTransactionsAnswer)).transactions;
  }

  /**
   * Resolve with the last transaction of an application and those that it has staged (`transactions`), and the newest
   * batches that it has committed (`batches`). Both are empty if the application is not known, or has been forgotten.
   */
  async describeTransactions(app) {
    const { transactions, batches } = await this.ask({ op: "list_transactions", app }, messages.listTransactionsAnswer);
    return { transactions, batches };
  }

  /**
   * Abort the open transaction of an application, and resolve with true; its process gets `TRANSACTION_ABORTED` at its
   * next batch or commit. Resolves with false if no transaction is open, or it was committed meanwhile. Staged
   * transactions are not touched; `abort` drops them.
   */
  async abortTransaction(app) {
    const { transactions } = await this.describeTransactions(app);
    const open = transactions.find(({ state, staged }) => state === "open" && !staged);
    if (!open) return false;
    const request = { op: "end_transaction", app, producer_id: open.producerId, producer_epoch: open.producerEpoch, commit: false };
    return !(await this.ask(request, messages.transactionEnded)).committed;
  }

  /**
   * Drop these staged transactions of an application, so that their records never become visible. Transactions that are
   * committed or unknown are left alone.
   */
  async abort(app, staged) {
    await this.ask({ op: "abort_staged", app, staged: [...staged] });
  }

  /**
   * End a hanging transaction in one partition, so that readers of committed records no longer wait for it. A
   * transaction hangs if it is open in the partition's log and no coordinator has it. With `commit` its records in the
   * partition become visible, else they never do. Rejects with `INVALID_TRANSACTION` if a coordinator has the
   * transaction, `UNKNOWN_TRANSACTION` if readers do not wait for it.
   */
  async settleTransaction(topic, partition, producerId, epoch, { commit }) {
    const { topicId } = await this.describe(topic);
    await this.ask({ op: "settle_transaction", topic_id: topicId, partition, producer_id: producerId, producer_epoch: epoch, commit });
  }
}
