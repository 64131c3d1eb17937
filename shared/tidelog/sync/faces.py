"""The blocking faces of consumers and of administration, made from the asynchronous classes. The methods and errors
are those of the classes in ``tidelog.client``, which document them."""

from tidelog.client import backward_consumer, consumer, group_consumer
from tidelog.client.admin import access, cluster, groups, partitions, topics, transactions
from tidelog.client.admin.old_names import keep_old_call
from tidelog.sync.face import blocking
from tidelog.sync.records import MemberRecords, Records

Consumer = blocking(consumer.Consumer, __name__, Records)
BackwardConsumer = blocking(backward_consumer.BackwardConsumer, __name__, Records)
GroupConsumer = blocking(group_consumer.GroupConsumer, __name__, MemberRecords)

TopicAdmin = keep_old_call("topics")(blocking(topics.TopicAdmin, __name__))
PartitionAdmin = blocking(partitions.PartitionAdmin, __name__)
GroupAdmin = keep_old_call("groups")(blocking(groups.GroupAdmin, __name__))
TransactionAdmin = keep_old_call("transactions")(blocking(transactions.TransactionAdmin, __name__))
AccessAdmin = keep_old_call("access")(blocking(access.AccessAdmin, __name__))
ClusterAdmin = blocking(cluster.ClusterAdmin, __name__)
