"""The blocking face of administration: what stands behind the attributes of ``tidelog.sync.Log``. What each method
means, and raises, is said where ``tidelog.Log`` has it."""

from tidelog.client.admin import access, cluster, groups, partitions, topics, transactions
from tidelog.sync.blocking import blocking

TopicAdmin = blocking(topics.TopicAdmin, __name__)
PartitionAdmin = blocking(partitions.PartitionAdmin, __name__)
GroupAdmin = blocking(groups.GroupAdmin, __name__)
TransactionAdmin = blocking(transactions.TransactionAdmin, __name__)
AccessAdmin = blocking(access.AccessAdmin, __name__)
ClusterAdmin = blocking(cluster.ClusterAdmin, __name__)
