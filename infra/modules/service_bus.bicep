// The two queues that hold one message for each data set and period, and the app's roles.
// shared/trends/datasets/entities.py checks the properties of the queues when the app starts.

param namespaceName string
param principalId string
param topic string
param countsRole string
param processes bool
param processingQueue string
param workingQueue string
param app string
param tags object
param actionGroupIds string[]

// The namespace answers questions about message counts only to a data owner. Resource Manager answers
// them to whoever may read the namespace, as Monitoring Reader below may.
var dataOwner = '090c5cfd-751d-490a-894a-3ce6f1109419'
var dataSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var dataReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'

var monitoringReader = '43d0d8ad-25c7-4714-9337-8ba259a9fe05'

resource bus 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: namespaceName

  resource watched 'topics' existing = { name: topic }
}

resource working 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = if (processes) {
  parent: bus
  name: workingQueue
  properties: {
    requiresSession: true
    lockDuration: 'PT5M'
    maxDeliveryCount: 10
    deadLetteringOnMessageExpiration: true
  }
}

resource processing 'Microsoft.ServiceBus/namespaces/queues@2026-01-01' = if (processes) {
  parent: bus
  name: processingQueue
  properties: {
    requiresDuplicateDetection: true
    // The maximum. The app refuses settings that would need a longer window.
    duplicateDetectionHistoryTimeWindow: 'P7D'
    requiresSession: false
    forwardTo: workingQueue
    deadLetteringOnMessageExpiration: true
  }
  dependsOn: [working]
}

resource mayCount 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (countsRole == 'DataOwner') {
  name: guid(bus::watched.id, principalId, dataOwner)
  scope: bus::watched
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataOwner)
  }
}

// The app learns the throughput from the messages that Azure Monitor counts.
resource mayReadMetrics 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(bus.id, principalId, monitoringReader)
  scope: bus
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', monitoringReader)
  }
}

resource maySend 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (processes) {
  name: guid(processing.id, principalId, dataSender)
  scope: processing
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataSender)
  }
}

resource mayReceive 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (processes) {
  name: guid(working.id, principalId, dataReceiver)
  scope: working
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', dataReceiver)
  }
}

resource deadLetters 'Microsoft.Insights/metricAlerts@2026-01-01' = if (processes) {
  name: '${app}-dead-letters'
  location: 'global'
  tags: tags
  properties: {
    description: 'Data sets could not be processed. See the dead-letter queue.'
    severity: 2
    enabled: true
    scopes: [bus.id]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          criterionType: 'StaticThresholdCriterion'
          name: 'dead letters'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: 'DeadletteredMessages'
          dimensions: [
            { name: 'EntityName', operator: 'Include', values: [processingQueue, workingQueue] }
          ]
          timeAggregation: 'Average'
          operator: 'GreaterThan'
          threshold: 0
        }
      ]
    }
    actions: [for id in actionGroupIds: { actionGroupId: id }]
  }
}

output host string = split(split(bus.properties.serviceBusEndpoint, '/')[2], ':')[0]
